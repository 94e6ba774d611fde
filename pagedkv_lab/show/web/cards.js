// The sequences: one card each, with its status, its text as it streams, and its block table.
//
// Knows a state's sequences. Does not know the pool's drawing, nor what becomes of a click: it calls back.

const MOST_FINISHED = 8;
const STATUS_WORDS = { waiting: "waiting", preempted: "preempted", aborted: "stopped" };
const CARD_PADDING = 28; // left and right of a card's contents, with its borders
const ACTIONS_WIDTH = 100; // fork and stop, beside the chips

/** The cards that are shown: everything alive, then the newest that have finished. */
function shownSequences(sequences) {
  const isOver = ({ status }) => status === "finished" || status === "aborted";
  const over = sequences.filter(isOver).sort((one, other) => other.id - one.id);
  return [...sequences.filter((sequence) => !isOver(sequence)), ...over.slice(0, MOST_FINISHED)];
}

class CardList {
  /**
   * host: the scrolling panel. canAct: whether cards have fork and stop.
   * on: { follow(id), highlight(blocks), fork(id), abort(request), resize() }.
   */
  constructor(host, { canAct, emptyText, on }) {
    Object.assign(this, { canAct, emptyText, on });
    this.heading = element("div", { class: "pkv-cards-heading" }, element("b", {}, "Sequences"));
    this.counts = element("span");
    this.heading.append(this.counts);
    this.list = element("ul", { class: "pkv-card-list" });
    this.empty = element("p", { class: "pkv-empty" });
    const attributes = { class: "pkv-card-scroller", role: "region", tabindex: "0", "aria-label": "sequences" };
    host.append(element("div", attributes, this.heading, this.list, this.empty));
    this.cards = new Map();
    this.width = 0;
    this.observer = new ResizeObserver(() => this.resized());
    this.observer.observe(this.list);
  }

  /** The width says how many chips fit; the height changes all the time and does not matter. */
  resized() {
    if (this.list.clientWidth === this.width) return;
    this.width = this.list.clientWidth;
    this.on.resize();
  }

  /** canAct: whether there is a kernel to do what fork and stop say. */
  draw(state, { followed, canAct }) {
    const sequences = shownSequences(state.sequences);
    const capacity = this.capacity(state.meta.num_blocks);
    this.dropOthers(sequences);
    this.list.style.setProperty("--text-lines", linesFor(sequences.length));
    for (const sequence of sequences) {
      this.cardOf(sequence.id).draw(sequence, state, { capacity, canAct, isFollowed: sequence.id === followed });
    }
    this.arrange(sequences);
    const { running, waiting, finished } = state.numbers;
    setText(this.counts, `${running} running · ${waiting} waiting · ${finished} finished`);
    this.empty.hidden = sequences.length > 0;
    setText(this.empty, this.emptyText);
  }

  /** In order. From the end on, so that only cards that change their place are touched: the others keep the focus. */
  arrange(sequences) {
    let next = null;
    for (const { id } of [...sequences].reverse()) {
      const { node } = this.cards.get(id);
      if (node.parentNode !== this.list || node.nextSibling !== next) this.list.insertBefore(node, next);
      next = node;
    }
  }

  /** Chips that fit into one row. */
  capacity(numBlocks) {
    const width = this.width - CARD_PADDING - (this.canAct ? ACTIONS_WIDTH : 0);
    this.list.style.setProperty("--chip-width", `${chipWidth(numBlocks)}px`);
    return Math.max(3, Math.floor((width + CHIP_GAP) / (chipWidth(numBlocks) + CHIP_GAP)));
  }

  cardOf(id) {
    if (!this.cards.has(id)) this.cards.set(id, new Card(id, this.canAct, this.on));
    return this.cards.get(id);
  }

  dropOthers(sequences) {
    const ids = new Set(sequences.map((sequence) => sequence.id));
    for (const [id, card] of this.cards) {
      if (ids.has(id)) continue;
      card.node.remove();
      this.cards.delete(id);
    }
  }

  destroy() {
    this.observer.disconnect();
  }
}

class Card {
  constructor(id, canAct, on) {
    Object.assign(this, { id, on });
    this.build(canAct);
    this.node.style.setProperty("--sequence", sequenceColour(id));
    this.node.addEventListener("click", (event) => this.click(event));
    this.node.addEventListener("pointerover", (event) => this.point(event));
    this.node.addEventListener("pointerleave", () => on.highlight([]));
  }

  build(canAct) {
    this.name = element("button", { type: "button", class: "pkv-card-name" });
    this.badges = element("span", { class: "pkv-badges" });
    this.status = element("span", { class: "pkv-status" });
    this.prompt = middleCutText("pkv-card-prompt");
    this.text = element("p");
    const chips = element("div", { class: "pkv-chips", role: "img" });
    this.chips = new ChipRow(chips);
    this.noBlocks = element("span", { class: "pkv-no-blocks" });
    this.node = element(
      "li",
      { class: "pkv-card" },
      element("header", {}, this.name, this.badges, this.status),
      this.prompt.node,
      element("div", { class: "pkv-text" }, this.text),
      element("footer", {}, chips, this.noBlocks, canAct ? this.buildActions() : null),
    );
  }

  buildActions() {
    const fork = { type: "button", onclick: () => this.on.fork(this.id) };
    const stop = { type: "button", onclick: () => this.on.abort(this.sequence.request) };
    this.fork = element("button", fork, "fork");
    this.stop = element("button", stop, "stop");
    this.actions = element("span", { class: "pkv-card-actions" }, this.fork, this.stop);
    return this.actions;
  }

  draw(sequence, state, { capacity, canAct, isFollowed }) {
    this.sequence = sequence;
    const isOver = sequence.status === "finished" || sequence.status === "aborted";
    setAttribute(this.node, "data-status", sequence.status);
    setAttribute(this.node, "data-followed", isFollowed);
    setAttribute(this.name, "aria-pressed", String(isFollowed));
    setAttribute(this.name, "title", isFollowed ? "stop following its blocks" : "follow its blocks through the pool");
    setText(this.name, sequence.name);
    setText(this.badges, badgeText(sequence, state));
    setText(this.status, statusText(sequence));
    setAttribute(this.status, "title", statusHelp(sequence));
    this.prompt.setTo(sequence.prompt);
    setText(this.text, sequence.text);
    this.drawTable(sequence, state, isFollowed ? null : capacity);
    if (this.actions) this.drawActions(sequence, isOver, canAct);
  }

  drawTable(sequence, state, capacity) {
    const hasBlocks = sequence.table.length > 0;
    this.chips.host.hidden = !hasBlocks;
    this.noBlocks.hidden = hasBlocks;
    if (hasBlocks) this.chips.draw(sequence.table, state, capacity);
    else setText(this.noBlocks, NO_BLOCKS[sequence.status] ?? "no blocks");
  }

  drawActions(sequence, isOver, canAct) {
    this.actions.hidden = isOver;
    this.fork.disabled = !canAct || sequence.status !== "decode";
    this.stop.disabled = !canAct;
    setAttribute(this.fork, "aria-label", `fork ${sequence.name}`);
    setAttribute(this.fork, "title", "A second sequence that shares all its blocks, until one of them writes.");
    setAttribute(this.stop, "aria-label", `stop request ${sequence.request}`);
    setAttribute(this.stop, "title", `End request ${sequence.request} and take its blocks back.`);
  }

  /** A click anywhere follows the sequence, except on a button, or where it only ended a selection of text. */
  click(event) {
    const button = event.target.closest("button");
    if (button && button !== this.name) return;
    if (button || getSelection().isCollapsed) this.on.follow(this.id);
  }

  point(event) {
    const block = event.target.closest("[data-block]")?.dataset.block;
    this.on.highlight(block ? [Number(block)] : []);
  }
}

const NO_BLOCKS = {
  waiting: "no blocks yet",
  preempted: "blocks taken back, to be computed again",
  finished: "its blocks are back in the pool",
  aborted: "its blocks are back in the pool",
};

/** Where the sequence stands, with the tokens it has. */
function statusText({ status, computed, prompt_tokens: prompt, output_tokens: output }) {
  if (status === "prefill") return `prefill ${computed} / ${prompt + output}`; // after a preemption, output too
  if (status === "decode") return `decoding · ${prompt} + ${output}`;
  if (status === "finished") return `finished · ${prompt} + ${output}`;
  return STATUS_WORDS[status];
}

function statusHelp({ prompt_tokens: prompt, output_tokens: output, reason }) {
  const tokens = `${plural(prompt, "prompt token")} + ${plural(output, "token")} generated`;
  return reason ? `${tokens}; finish reason: ${reason}` : tokens;
}

/** What is special about this one. */
function badgeText({ hit, parent, preemptions }, { sequences }) {
  const words = [];
  if (parent !== null) words.push(`fork of ${nameOf(parent, sequences)}`);
  if (hit) words.push(`${hit} tokens hit`);
  if (preemptions) words.push(`preempted ${preemptions}×`);
  return words.join(" · ");
}

function nameOf(id, sequences) {
  return sequences.find((sequence) => sequence.id === id)?.name ?? `sequence ${id}`;
}

/** Lines of text a card: more where there are few cards. */
function linesFor(cards) {
  return cards <= 3 ? 4 : cards <= 5 ? 3 : 2;
}
