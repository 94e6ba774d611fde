// Slots over steps: how many hold a token, how many blocks have reserved, how many contiguous rows would reserve.
//
// Knows `state.history`. Does not know the pool or the baseline that the numbers come from.

const CHART_HEIGHT = 76; // CSS px, with the numbers below
const CHART_EDGES = { top: 6, bottom: 15, right: 1 }; // CSS px around the areas
const LABEL_HIGH = 13; // CSS px that a label needs

class HistoryChart {
  constructor(host) {
    this.surface = new Surface(host, "pkv-history", () => this.paint());
  }

  draw(state) {
    this.state = state;
    this.surface.canvas.setAttribute("aria-label", historyLabel(state.history));
    this.surface.request();
  }

  destroy() {
    this.surface.destroy();
  }

  paint() {
    const { surface } = this;
    surface.clear(CHART_HEIGHT);
    if (!this.state) return;
    const { history } = this.state;
    surface.context.font = surface.font(10.5);
    this.scale(history);
    this.paintAxes(history);
    if (history.n) this.paintSeries(history);
  }

  /** Sets x(point) and y(slots) in CSS px. Each point stands for one step, and is as wide as that step. */
  scale({ n, step, filled, reserved, contiguous }) {
    const { context, width } = this.surface;
    const most = Math.max(1, ...[filled, reserved, contiguous].map(largest));
    this.ticks = slotTicks(most);
    this.left = Math.ceil(Math.max(...this.ticks.map((slots) => context.measureText(withCommas(slots)).width))) + 8;
    this.right = width - CHART_EDGES.right;
    this.base = CHART_HEIGHT - CHART_EDGES.bottom;
    const first = n ? step[0] : 0;
    const steps = n ? Math.max(step[n - 1] + 1 - first, 1) : 1;
    const top = Math.max(most, this.ticks.at(-1));
    this.x = (i) => this.left + (((i < n ? step[i] : first + steps) - first) / steps) * (this.right - this.left);
    this.y = (slots) => this.base - (slots / top) * (this.base - CHART_EDGES.top);
  }

  paintAxes({ n, step }) {
    const { context, palette } = this.surface;
    Object.assign(context, { strokeStyle: palette.line, fillStyle: palette.dim, lineWidth: 1, textBaseline: "middle" });
    context.textAlign = "right";
    context.beginPath();
    for (const slots of this.ticks) {
      const y = Math.round(this.y(slots)) + 0.5;
      context.moveTo(this.left, y);
      context.lineTo(this.right, y);
      context.fillText(withCommas(slots), this.left - 6, Math.min(y, this.base - 2));
    }
    context.stroke();
    if (!n) return;
    const low = CHART_HEIGHT - 6;
    context.fillText(n > 1 ? `step ${withCommas(step[n - 1])}` : "", this.right, low);
    context.textAlign = "left";
    context.fillText(`step ${withCommas(step[0])}`, this.left, low);
  }

  /** From the back to the front; then the labels. */
  paintSeries({ n, filled, reserved, contiguous }) {
    const { palette } = this.surface;
    const colour = OKABE_ITO.blue;
    const nothing = new Int32Array(n);
    const held = Int32Array.from(reserved, (slots, i) => Math.max(slots, filled[i]));
    this.paintArea(contiguous, withAlpha(palette.dim, 0.16));
    this.paintEdge(contiguous, palette.dim, 1);
    this.paintArea(held, withAlpha(colour, 0.35));
    this.paintArea(filled, colour);
    this.paintEdge(held, OKABE_ITO.sky, 1);
    this.labelBetween(nothing, filled, "slots filled", textOn(colour));
    const inside = this.labelBetween(filled, held, "reserved", palette.ink);
    const end = this.labelBetween(held, contiguous, "contiguous rows would reserve this much", palette.ink);
    if (!inside) this.labelAbove(held, "reserved by blocks", palette.ink, end ?? this.left);
  }

  /** The ground below the values. */
  paintArea(values, colour) {
    const { context } = this.surface;
    context.beginPath();
    context.moveTo(this.left, this.base);
    this.stairs(values);
    context.lineTo(this.right, this.base);
    context.fillStyle = colour;
    context.fill();
  }

  paintEdge(values, colour, line) {
    const { context } = this.surface;
    context.beginPath();
    this.stairs(values);
    Object.assign(context, { strokeStyle: colour, lineWidth: line });
    context.stroke();
  }

  /** A line over the values, each as long as its step. */
  stairs(values) {
    values.forEach((slots, i) => {
      this.surface.context.lineTo(this.x(i), this.y(slots));
      this.surface.context.lineTo(this.x(i + 1), this.y(slots));
    });
  }

  /**
   * A label in the band between two series, at the first place that has room for it. Returns where it ends, in CSS px;
   * undefined where there is no room.
   */
  labelBetween(low, high, label, ink) {
    const { context } = this.surface;
    const wide = context.measureText(label).width + 12;
    for (let start = 0; start < low.length && this.x(start) + wide <= this.right; start += 1) {
      const floor = this.highest(low, start, this.x(start) + wide);
      const ceiling = this.lowest(high, start, this.x(start) + wide);
      if (floor - ceiling < LABEL_HIGH) continue;
      paintLabel(context, label, this.x(start) + wide / 2, (floor + ceiling) / 2, ink);
      return this.x(start) + wide;
    }
  }

  /** A label on the line of a series, at the right end, where nothing is written from `after` on. */
  labelAbove(values, label, ink, after) {
    const { context } = this.surface;
    const left = this.right - context.measureText(label).width - 8;
    if (left < after + 8) return;
    let start = values.length - 1;
    while (start > 0 && this.x(start) > left) start -= 1;
    const line = this.highest(values, start, this.right);
    if (line > LABEL_HIGH) paintLabel(context, label, (left + this.right) / 2 - 2, line - LABEL_HIGH / 2 - 1, ink);
  }

  /** The smallest y of a series from point `start` to `right`, CSS px. */
  highest(values, start, right) {
    let y = this.base;
    for (let i = start; i < values.length && this.x(i) < right; i += 1) y = Math.min(y, this.y(values[i]));
    return y;
  }

  /** The largest y, likewise. */
  lowest(values, start, right) {
    let y = 0;
    for (let i = start; i < values.length && this.x(i) < right; i += 1) y = Math.max(y, this.y(values[i]));
    return y;
  }
}

function largest(values) {
  return values.reduce((most, value) => Math.max(most, value), 0);
}

/** 0, one between and one near the top: [0, 500, 1000] for 1,100. */
function slotTicks(most) {
  const unit = 10 ** Math.floor(Math.log10(most));
  const top = [5, 4, 2, 1].map((times) => times * unit).find((slots) => slots <= most);
  return top >= 2 ? [0, Math.round(top / 2), top] : [0, top];
}

function historyLabel({ n, step, filled, reserved, contiguous }) {
  if (!n) return "Slots over steps: nothing yet.";
  const [held, full, rows] = [reserved, filled, contiguous].map((values) => withCommas(values[n - 1]));
  const also = contiguous[n - 1] ? `; contiguous rows would reserve ${rows}` : "";
  return `Slots at step ${step[n - 1]}: ${full} filled of ${held} reserved${also}.`;
}
