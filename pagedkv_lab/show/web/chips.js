// A block table as a row of chips, one a block, in the table's order.
//
// Knows one table and the pool. Does not know the sequence's text or status.

const CHIP_GAP = 2;
const MOST_CHIPS = 400; // of a table that is shown whole

/** Width of a chip in CSS pixels, so that the pool's largest block number fits. */
function chipWidth(numBlocks) {
  return 8 + 6 * Math.max(2, String(numBlocks - 1).length);
}

/** How many blocks to show before and after the gap, where `length` blocks shall take `capacity` chips. */
function elide(length, capacity) {
  if (length <= capacity) return { head: length, tail: 0 };
  const room = Math.max(2, capacity - 1); // one chip is the gap
  const head = Math.floor(room * 0.45);
  return { head, tail: room - head };
}

class ChipRow {
  constructor(host) {
    this.host = host;
    this.chips = [];
  }

  /** capacity: chips that fit, or null to show the whole table. */
  draw(table, state, capacity) {
    const { head, tail } = elide(table.length, capacity ?? MOST_CHIPS);
    const shown = [...table.subarray(0, head)].map((block) => chipOf(block, state));
    const hidden = table.length - head - tail;
    if (hidden) shown.push({ text: "…", look: "gap", fill: 1, help: `${hidden} more blocks`, block: "" });
    for (const block of table.subarray(table.length - tail)) shown.push(chipOf(block, state));
    this.show(shown);
    setAttribute(this.host, "aria-label", tableSentence(table, state));
  }

  /** Reuse the chips that are there. */
  show(chips) {
    while (this.chips.length < chips.length) this.addChip();
    this.chips.forEach((chip, i) => {
      chip.node.hidden = i >= chips.length;
      if (i < chips.length) updateChip(chip, chips[i]);
    });
  }

  addChip() {
    const node = element("span", { class: "pkv-chip" });
    this.chips.push({ node, key: "" });
    this.host.append(node);
  }
}

/** What one chip says and looks like. */
function chipOf(block, { pool, step, meta }) {
  const filled = pool.filled[block];
  const refs = pool.refs[block];
  const looks = [];
  if (refs > 1) looks.push("shared");
  if (filled < meta.block_size) looks.push("partial");
  if (pool.eventStep[block] === step && pool.event[block] === EVENT_HIT) looks.push("hit");
  if (pool.eventStep[block] === step && pool.event[block] === EVENT_COPIED) looks.push("copied");
  const sharing = refs > 1 ? `, shared by ${refs}` : "";
  const help = `block ${block}: ${filled} of ${meta.block_size} slots filled${sharing}`;
  return { text: String(block), look: looks.join(" "), fill: filled / meta.block_size, help, block };
}

function updateChip(chip, { text, look, fill, help, block }) {
  const key = `${text}|${look}|${help}`;
  if (chip.key === key) return;
  chip.key = key;
  setText(chip.node, text);
  setAttribute(chip.node, "data-look", look);
  setAttribute(chip.node, "data-block", block);
  setAttribute(chip.node, "title", help);
  chip.node.style.setProperty("--fill", `${fill * 100}%`);
}

/** The table in words. */
function tableSentence(table, { pool, meta }) {
  if (!table.length) return "no blocks";
  const shared = table.filter((block) => pool.refs[block] > 1).length;
  const filled = pool.filled[table[table.length - 1]];
  const words = [plural(table.length, "block")];
  if (shared) words.push(`${shared} shared`);
  words.push(`the last with ${filled} of ${meta.block_size} slots filled`);
  return words.join(", ");
}
