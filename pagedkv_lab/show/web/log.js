// The log: what happened, in words, newest last.
//
// Knows log lines and the blocks they name. Does not know who wrote them. New lines never move what somebody is
// reading: the log follows the newest only as long as the newest is in sight.

const MOST_LINES = 200;
/** "block 3", "blocks 3, 4 and 17", "12 blocks (3, 4, 17, …)" */
const BLOCK_NAMES = /(blocks? \d+(?:(?:, | and )\d+)*|\d+ blocks \([^)]*\))/;
let lineCount = 0; // of all logs of the page: an id a line

class Log {
  constructor(host, onHighlight) {
    this.onHighlight = onHighlight;
    this.lines = []; // [step, text, blocks], as shown
    this.selected = null;
    this.list = element("ol", {
      class: "pkv-log-lines",
      tabindex: "0",
      role: "listbox",
      "aria-label": "what happened",
      onkeydown: (event) => this.key(event),
      onblur: () => this.select(null),
      onpointerover: (event) => this.point(event.target.closest("li")),
      onpointerleave: () => onHighlight([]),
    });
    this.empty = element("p", { class: "pkv-empty" }, "Nothing has happened yet.");
    host.append(this.list, this.empty);
  }

  draw({ log }) {
    this.empty.hidden = log.length > 0;
    const common = commonLines(this.lines, log);
    if (common === log.length && log.length) return;
    const isAtEnd = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 8;
    if (!common) this.removeFirst(this.lines.length);
    for (const line of log.slice(common)) this.append(line);
    this.removeFirst(this.lines.length - MOST_LINES);
    if (isAtEnd) this.list.scrollTop = this.list.scrollHeight;
  }

  append(line) {
    const [step, text, blocks] = line;
    const words = text.split(BLOCK_NAMES);
    const parts = words.map((word, i) => (i % 2 ? element("em", {}, word) : word));
    const label = element("span", { class: "pkv-log-step" }, `step ${step} · `);
    lineCount += 1;
    const attributes = { role: "option", id: `pkv-line-${lineCount}`, "data-blocks": blocks.join(" ") };
    const item = element("li", attributes, label, ...parts);
    this.lines.push(line);
    this.list.append(item);
  }

  /** Take away the oldest lines, and scroll by as much, so that the others stay where they are. */
  removeFirst(count) {
    if (count <= 0) return;
    const before = this.list.scrollHeight;
    for (let i = 0; i < count; i += 1) this.list.firstChild.remove();
    this.lines.splice(0, count);
    this.list.scrollTop -= before - this.list.scrollHeight;
    if (this.selected && !this.selected.isConnected) this.select(null);
  }

  point(item) {
    this.onHighlight(item ? blocksOf(item) : []);
  }

  /** Up and down go from line to line; the line's blocks are marked in the pool. */
  key(event) {
    const moves = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" };
    if (event.key === "Escape") this.select(null);
    if (!(event.key in moves) || !this.list.children.length) return;
    event.preventDefault();
    const next = this.selected ? this.selected[moves[event.key]] : this.list.lastElementChild;
    if (next) this.select(next);
  }

  select(item) {
    if (this.selected) setAttribute(this.selected, "aria-selected", null);
    this.selected = item;
    setAttribute(this.list, "aria-activedescendant", item?.id);
    this.onHighlight(item ? blocksOf(item) : []);
    if (!item) return;
    setAttribute(item, "aria-selected", "true");
    item.scrollIntoView({ block: "nearest" });
  }
}

function blocksOf(item) {
  return item.dataset.blocks ? item.dataset.blocks.split(" ").map(Number) : [];
}

/** How many lines at the start of `log` are already shown as the last lines of `shown`; 0 where none or unclear. */
function commonLines(shown, log) {
  if (!shown.length) return 0;
  for (let length = Math.min(shown.length, log.length); length > 0; length -= 1) {
    const offset = shown.length - length;
    if (log.slice(0, length).every((line, i) => isSameLine(line, shown[offset + i]))) return length;
  }
  return 0;
}

function isSameLine(one, other) {
  return one[0] === other[0] && one[1] === other[1];
}
