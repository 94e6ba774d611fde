// The tooltip of a block: what there is to say about it, and where it is put.
//
// Knows one state and one block at a time. Does not know the canvas, nor who points at the block.

const TIP_WIDTH = 300; // CSS px
const TIP_AWAY = 10; // CSS px from the block
const SHOWN_TEXT = 160; // characters
const SHOWN_HOLDERS = 4; // of a block that many sequences share

/** The sequences whose table holds the block: [{ sequence, position }], position from 0. */
function holdersOf(state, block) {
  return state.sequences
    .map((sequence) => ({ sequence, position: sequence.table.indexOf(block) }))
    .filter(({ position }) => position >= 0);
}

/** The pool in one sentence, for a screen reader, and how to read on. */
function poolLabel({ meta, numbers, step }) {
  const { free, cached, used, shared, partial } = numbers;
  return (
    `KV pool at step ${step}: ${plural(meta.num_blocks, "block")} of ${plural(meta.block_size, "token")}: ` +
    `${free} free, ${cached} cached, ${used} in use (${shared} shared, ${partial} partly filled). ` +
    "Arrow keys go from block to block, Enter follows its sequence, Escape leaves."
  );
}

/** What the tooltip says, as plain text. */
function describeBlock(state, block) {
  const text = blockText(state, block);
  const lines = [`block ${block}: ${stateInWords(state, block)}`];
  lines.push(...blockFacts(state, block).map(([name, ...values]) => `${name}: ${values.join(", ")}`));
  if (text) lines.push(`tokens: ${text.replaceAll("\n", "⏎")}`);
  return lines.join("\n");
}

function stateInWords({ pool }, block) {
  if (pool.state[block] === USED) return pool.refs[block] > 1 ? `in use, shared by ${pool.refs[block]}` : "in use";
  return pool.state[block] === CACHED ? "free, its contents still findable" : "free";
}

/** [[name, value, perhaps more values], ...] */
function blockFacts(state, block) {
  const { pool } = state;
  const facts = [
    ["references", String(pool.refs[block])],
    ["filled", filledInWords(state, block)],
    ["hash", hashInWords(state, block)],
    ["held by", ...holdersInWords(state, block)],
  ];
  if (pool.owner[block] || pool.lastUse[block]) facts.push(["last used", `step ${pool.lastUse[block]}`]);
  const event = eventInWords(pool.event[block]);
  if (event) facts.push(["event", `${event} in step ${pool.eventStep[block]}`]);
  return facts;
}

/** Only full blocks can be found again, so a cached one is full, though no living sequence has a token in it. */
function filledInWords({ pool, meta }, block) {
  const slots = plural(meta.block_size, "slot");
  return pool.state[block] === CACHED ? `${slots}, kept until evicted` : `${pool.filled[block]} of ${slots}`;
}

function eventInWords(event) {
  if (event === EVENT_ALLOCATED) return "allocated";
  if (event === EVENT_HIT) return "hit";
  if (event === EVENT_COPIED) return "copied to";
  return event === EVENT_EVICTED ? "evicted and taken anew" : null;
}

function hashInWords({ pool, meta, details }, block) {
  if (pool.state[block] === FREE) return "no hash";
  const known = details.get(block);
  if (known?.key) return known.key;
  if (pool.state[block] === USED && pool.filled[block] < meta.block_size) return "no hash: not full";
  return known ? "no hash" : "…";
}

/** One or more texts. */
function holdersInWords(state, block) {
  const holders = holdersOf(state, block);
  if (!holders.length) return [lastHolderInWords(state, block)];
  const shown = holders.slice(0, SHOWN_HOLDERS).map(({ sequence, position }) => {
    return `${sequence.name} (its block ${position + 1} of ${sequence.table.length})`;
  });
  if (holders.length > shown.length) shown.push(`${holders.length - shown.length} more`);
  return shown;
}

function lastHolderInWords({ pool, sequences }, block) {
  const id = pool.owner[block];
  if (!id) return "nobody yet";
  const name = sequences.find((sequence) => sequence.id === id)?.name ?? `sequence ${id}`;
  return pool.state[block] === USED ? name : `nobody; last by ${name}`;
}

/** The decoded tokens, cut off where they are long; "…" until they are known, "" where there are none. */
function blockText({ pool, details }, block) {
  if (pool.state[block] === FREE) return "";
  const text = details.get(block)?.text ?? "…";
  return text.length > SHOWN_TEXT ? `${text.slice(0, SHOWN_TEXT)}…` : text;
}

class BlockTip {
  constructor(canvas, askDetails) {
    this.canvas = canvas;
    this.askDetails = askDetails;
    this.asked = {}; // what was asked for last: { look, serial }
    this.says = ""; // what is in the tooltip
    this.node = element("div", { class: "pkv-tip", role: "tooltip", hidden: true });
    Object.assign(this.node.style, { position: "absolute", pointerEvents: "none", boxSizing: "border-box" });
    canvas.parentElement.style.position = "relative";
    canvas.after(this.node);
  }

  /** Show the block, or nothing for null. rect: of its cell in the canvas, CSS px. */
  update(state, block, rect) {
    this.node.hidden = block === null;
    if (block === null) return;
    this.ask(state, block);
    const says = describeBlock(state, block);
    if (says !== this.says) this.fill(state, block);
    this.says = says;
    this.place(rect);
  }

  /** Once for a block and a frame, where something is missing or the block has changed since. */
  ask({ pool, details, serial }, block) {
    if (pool.state[block] === FREE) return;
    const look = [block, pool.state[block], pool.filled[block], pool.event[block], pool.eventStep[block]].join();
    if (look === this.asked.look && (details.has(block) || serial === this.asked.serial)) return;
    this.asked = { look, serial };
    this.askDetails?.(block);
  }

  fill(state, block) {
    const facts = blockFacts(state, block).flatMap(([name, ...values]) => {
      const lines = values.flatMap((value) => [value, element("br")]).slice(0, -1);
      return [element("dt", {}, name), element("dd", {}, ...lines)];
    });
    const heading = element("header", {}, element("b", {}, `block ${block}`), ` ${stateInWords(state, block)}`);
    const text = blockText(state, block);
    this.node.replaceChildren(heading, element("dl", {}, ...facts));
    if (text) this.node.append(element("p", {}, ...withVisibleSpaces(text)));
  }

  /** Beside the block, inside the view; above or below it where the view is too narrow for that. */
  place({ x, y, width }) {
    const { canvas, node } = this;
    const view = (canvas.closest(".pkv") ?? canvas.parentElement).getBoundingClientRect();
    const box = canvas.getBoundingClientRect();
    const [left, right] = [view.left - box.left, view.right - box.left]; // the view, from the canvas' corner
    const [top, bottom] = [view.top - box.top, view.bottom - box.top];
    node.style.width = `${Math.min(TIP_WIDTH, view.width)}px`;
    const [wide, high] = [node.offsetWidth, node.offsetHeight];
    let across = x + width + TIP_AWAY;
    let down = Math.max(top, Math.min(y - TIP_AWAY, bottom - high));
    if (across + wide > right) across = x - TIP_AWAY - wide;
    if (across < left) {
      across = Math.max(left, Math.min(x, right - wide));
      const below = y + width + TIP_AWAY;
      down = below + high <= bottom ? below : y - TIP_AWAY - high;
    }
    node.style.left = `${canvas.offsetLeft + across}px`;
    node.style.top = `${canvas.offsetTop + down}px`;
  }

  destroy() {
    this.node.remove();
  }
}

/** The text as nodes: spaces as ␣ and line ends as ⏎, faint, and with room to break after them. */
function withVisibleSpaces(text) {
  return text.split(/([ \n\t])/).flatMap((part) => {
    const glyph = { " ": "␣", "\n": "⏎", "\t": "⇥" }[part];
    return glyph ? [element("i", {}, glyph), element("wbr")] : [part];
  });
}
