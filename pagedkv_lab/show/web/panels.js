// The small panels around the pool: legend with counts, number tiles, the baseline's numbers, the banner, and
// what a screen reader is told.
//
// Knows a state's numbers. Does not know where a state comes from, nor the pool's drawing.

/** The kinds of block: name of the count in `state.numbers`, name here, what it looks like, what it means. */
const KINDS = [
  ["free", "free", { state: FREE, level: 0, holders: 0 }, "Nobody holds it, and nothing in it can be found."],
  ["cached", "cached, free", { state: CACHED, level: 1, holders: 0 }, "Nobody holds it; a prompt may still find it."],
  ["used", "in use", { state: USED, level: 1, holders: 1 }, "A sequence's block table lists it."],
  ["shared", "shared", { state: USED, level: 1, holders: 2 }, "Several block tables list it: so many."],
  ["partial", "partly filled", { state: USED, level: 0.5, holders: 1 }, "As high as it is full."],
];
/** Marks of what has just happened to a block. */
const MARKS = [
  ["allocated", "taken", "Allocated in this step."],
  ["hit", "hit", "Found by its hash in this step: its tokens were not computed again."],
  ["copied", "copied", "Copied in this step, because it was about to be written while shared."],
  ["evicted", "evicted", "What it held was dropped in this step, for new tokens."],
];

/** The kinds with their counts, the marks, and the choice what colours mean. */
class Legend {
  constructor(host, colourBy, onColourBy) {
    this.kinds = KINDS.map(([count, label, look, help]) => {
      const swatch = element("canvas", { class: "pkv-swatch", "aria-hidden": "true" });
      const number = element("b", {}, "0");
      return { count, look, swatch, number, node: legendEntry(swatch, label, help, number) };
    });
    const marks = MARKS.map(([mark, label, help]) => {
      const swatch = element("i", { class: "pkv-mark", "data-mark": mark, "aria-hidden": "true" });
      return legendEntry(swatch, label, help, null);
    });
    this.isOld = true;
    this.select = choiceOf(["sequence", "state"], colourBy, onColourBy);
    host.append(
      element("div", { class: "pkv-legend-kinds" }, ...this.kinds.map(({ node }) => node)),
      element(
        "div",
        { class: "pkv-legend-more" },
        element("div", { class: "pkv-legend-marks" }, element("span", {}, "just now:"), ...marks),
        element("label", { class: "pkv-colour-by" }, "colour: ", this.select),
      ),
    );
  }

  draw({ numbers }) {
    for (const { count, number } of this.kinds) setText(number, withCommas(numbers[count]));
    if (this.isOld) this.paint();
  }

  /** The examples are to be painted anew: another theme, or another meaning of colours. */
  repaint() {
    this.isOld = true;
  }

  /** With the same brush as the pool's blocks. */
  paint() {
    this.isOld = false;
    for (const { look, swatch } of this.kinds) {
      const { state, holders } = look;
      const colour = this.select.value === "state" ? stateColour(state, holders) : sequenceColour(1);
      paintSwatch(swatch, { ...look, colour });
    }
  }
}

const SWATCH_SIDE = 15; // CSS pixels

function paintSwatch(canvas, look) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = canvas.height = Math.round(SWATCH_SIDE * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  paintBlock(context, 0, 0, SWATCH_SIDE, look, readPalette(canvas));
}

function legendEntry(swatch, label, help, count) {
  return element("span", { class: "pkv-legend-entry", title: help }, swatch, label, count);
}

function choiceOf(names, chosen, onChange) {
  const options = names.map((name) => element("option", { value: name, selected: name === chosen }, name));
  return element("select", { onchange: (event) => onChange(event.target.value) }, ...options);
}

/** Four numbers to read from across the room. */
class Tiles {
  constructor(host) {
    this.tiles = ["slots", "found", "speed", "preempted"].map((name) => {
      const tile = { value: element("b"), label: element("span"), note: element("small") };
      host.append(element("div", { class: "pkv-tile", "data-tile": name }, tile.value, tile.label, tile.note));
      return tile;
    });
  }

  draw({ numbers, meta }) {
    const { utilization, hit_rate: hitRate, tokens_per_second: speed, copies, evictions } = numbers;
    const slots = ofThem(numbers.used_slots, numbers.used * meta.block_size);
    this.fill(0, percent(utilization, 1), "reserved slots used", slots);
    this.fill(1, percent(hitRate), "prompt tokens hit", meta.caching ? "in cached blocks" : "prefix cache off");
    const rate = speed === null ? "–" : String(Math.round(speed));
    this.fill(2, rate, "tokens a second", plural(numbers.output_tokens, "token"));
    this.fill(3, withCommas(numbers.preemptions), "preempted", `${copies} copied · ${evictions} evicted`);
  }

  fill(i, value, label, note) {
    const tile = this.tiles[i];
    setText(tile.value, value);
    setText(tile.label, label);
    setText(tile.note, note);
  }
}

function ofThem(part, whole) {
  return `${withCommas(part)} of ${withCommas(whole)}`;
}

/** The heading and the numbers over the contiguous baseline's rows. */
class BaselineNumbers {
  constructor(host) {
    this.title = element("b");
    this.numbers = element("span");
    host.append(this.title, this.numbers);
  }

  draw({ baseline }) {
    const { rows, row_slots: slots, running, waiting, utilization, tokens_per_second: speed } = baseline;
    setText(this.title, `contiguous, same memory: ${plural(rows.length, "row")} of ${plural(slots, "slot")}`);
    const words = [`${running} running`, `${waiting} waiting`];
    if (speed !== null) words.push(`${Math.round(speed)} tokens a second`);
    words.push(`${percent(utilization, 1)} of reserved slots used`);
    setText(this.numbers, words.join(" · "));
  }
}

/** What went wrong, over everything; it stays until it is closed or the kernel says that it is over. */
class Banner {
  constructor(host, onClose) {
    this.host = host;
    this.text = element("p");
    this.button = iconButton("close", "", { class: "pkv-close", "aria-label": "close this message", onclick: onClose });
    host.append(this.text, this.button);
  }

  draw(text, canClose) {
    this.host.hidden = !text;
    this.button.hidden = !canClose;
    setText(this.text, text ?? "");
  }
}

/** Tells a screen reader how the pool stands, at most once a second, and only where it has changed. */
class Announcer {
  constructor(host) {
    this.host = host;
    this.next = "";
    this.timer = null;
  }

  say(sentence) {
    this.next = sentence;
    if (this.timer === null && sentence !== this.host.textContent) this.speak();
  }

  speak() {
    setText(this.host, this.next);
    this.timer = setTimeout(() => {
      this.timer = null;
      this.say(this.next);
    }, 1000);
  }

  destroy() {
    clearTimeout(this.timer);
  }
}
