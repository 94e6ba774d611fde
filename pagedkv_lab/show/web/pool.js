// The block pool as a canvas, one cell a block: marks, paths, mouse and keys.
//
// Knows the arrays of `state.pool` and the block tables. Does not know where a state comes from, where a block lies
// (grid.js), how it is painted (layer.js, block.js) or what a tooltip says (hover.js).
//
// What is seen are two layers. Below: all blocks (layer.js). Above: what moves (marks that fade, the followed table,
// cursors). So a frame costs one copy of the lower layer and a few lines, however many blocks there are.

const MARK_FADES = 900; // ms until the mark of an event is gone
const MARK_EVERY = 130; // ms from one picture of fading marks to the next: while frames come ten a second, they do it
const ARROWS_UP_TO = 64; // blocks in a table that is drawn with arrowheads

class PoolCanvas {
  /** calls: { onFollow(sequenceId | null), askDetails(block), onHover(block | null) } */
  constructor(host, calls) {
    this.calls = calls;
    this.surface = new Surface(host, "pkv-pool", () => this.paint(), BLEED);
    this.canvas = this.surface.canvas;
    this.canvas.poolCanvas = this;
    this.tip = new BlockTip(this.canvas, calls.askDetails);
    this.colourBy = "sequence";
    this.followed = null; // id of a sequence
    this.highlighted = [];
    this.pointed = null; // block under the pointer or the keyboard's cursor
    this.cursor = 0; // block where the keyboard's cursor is or was last
    this.marks = new Map(); // block -> { event, start (ms) }
    this.painted = { serial: null, step: null, blocks: 0 }; // the last frame seen
    this.listen();
  }

  draw(state) {
    this.state = state;
    this.canvas.setAttribute("aria-label", poolLabel(state));
    this.surface.request();
  }

  follow(sequenceId) {
    this.followed = sequenceId;
    this.surface.request();
  }

  setColourBy(colourBy) {
    this.colourBy = colourBy;
    this.surface.request();
  }

  highlight(blocks) {
    this.highlighted = blocks;
    this.surface.request();
  }

  destroy() {
    clearTimeout(this.timer);
    this.tip.destroy();
    this.surface.destroy();
  }

  cellRect(block) {
    return this.layout().rect(block);
  }

  blockAt(x, y) {
    return this.layout().blockAt(x, y);
  }

  describe(block) {
    return describeBlock(this.state, block);
  }

  // ---- painting

  /** The grid for the canvas as it is now. */
  layout() {
    const { surface } = this;
    surface.measure();
    const blocks = this.state.pool.n;
    const key = [blocks, surface.width, surface.ratio].join();
    if (this.layoutKey !== key) {
      this.layoutKey = key;
      this.grid = new PoolGrid(blocks, surface.width, surface.ratio);
    }
    return this.grid;
  }

  paint() {
    if (!this.state) return;
    const { surface } = this;
    const grid = this.layout();
    if (this.layer?.grid !== grid || this.layer.palette !== surface.palette) {
      this.layer = new BlockLayer(grid, surface.palette, surface.ratio);
    }
    if (this.state.serial !== this.painted.serial) this.takeFrame();
    this.layer.update(this.state, this.colourBy);
    surface.clear(grid.height);
    const table = this.followedTable();
    this.copyLayer(table.length ? 0.22 : 1);
    if (table.length) this.paintTable(table);
    this.paintMarks();
    for (const block of this.highlighted) this.outline(block, surface.palette.ink, 3);
    if (this.pointed !== null) this.outline(this.pointed, surface.palette.ink, 2);
    this.tip.update(this.state, this.pointed, this.pointed === null ? null : grid.rect(this.pointed));
  }

  /**
   * What is new since the last frame: events to mark, blocks or a sequence that are gone. An event has the step of the
   * frame that first tells it, so after a far jump through a recording only the new place's own events are marked.
   */
  takeFrame() {
    const { pool, step, serial } = this.state;
    const { painted } = this;
    const other = pool.n !== painted.blocks || step < painted.step;
    const isNewStep = other || step !== painted.step;
    if (other || reducedMotion()) this.marks.clear();
    const start = performance.now();
    for (let block = 0; block < pool.n; block += 1) {
      const event = pool.event[block];
      if (event && isNewStep && pool.eventStep[block] === step) this.marks.set(block, { event, start });
    }
    if (this.pointed >= pool.n) this.pointed = null;
    this.cursor = Math.min(this.cursor, pool.n - 1);
    this.highlighted = this.highlighted.filter((block) => block < pool.n);
    this.painted = { serial, step, blocks: pool.n };
    if (this.followed !== null && !this.followedSequence()) this.choose(null);
  }

  copyLayer(alpha) {
    const { context, ratio } = this.surface;
    const { canvas } = this.layer;
    context.globalAlpha = alpha;
    context.drawImage(canvas, 0, 0, canvas.width / ratio, canvas.height / ratio);
    context.globalAlpha = 1;
  }

  /** One block again, over what was painted since. */
  copyBlock(block) {
    const { context, ratio } = this.surface;
    const { x, y, width } = this.grid.rect(block);
    const [left, top, side] = [x, y, width].map((length) => Math.round(length * ratio));
    context.drawImage(this.layer.canvas, left, top, side, side, x, y, width, width);
  }

  followedSequence() {
    const sequence = this.state.sequences.find(({ id }) => id === this.followed);
    return sequence && !["finished", "aborted"].includes(sequence.status) ? sequence : null;
  }

  followedTable() {
    return this.followed === null ? [] : (this.followedSequence()?.table ?? []);
  }

  /** The blocks of a table, at full strength, with a line from each to the next and a pin on the first. */
  paintTable(table) {
    const { context, palette } = this.surface;
    const { side, gap, pitch } = this.grid;
    const colour = this.colourBy === "state" ? palette.ink : sequenceColour(this.followed);
    const centres = Array.from(table, (block) => this.centre(block));
    const curves = centres.slice(1).map((to, i) => curveBetween(centres[i], to, pitch));
    context.beginPath();
    for (const [from, bend, to] of curves) {
      context.moveTo(from.x, from.y);
      context.quadraticCurveTo(bend.x, bend.y, to.x, to.y);
    }
    const alpha = Math.max(0.15, Math.min(0.85, 40 / table.length)); // hundreds of lines would hide the blocks
    Object.assign(context, { lineWidth: side < FINE ? 1 : 2, strokeStyle: withAlpha(colour, alpha) });
    context.stroke();
    for (const block of table) this.copyBlock(block);
    if (table.length <= ARROWS_UP_TO && side >= FINE) {
      for (const curve of curves) paintArrowhead(context, curve, Math.max(gap + 3, 7), palette);
    }
    this.outline(table[0], palette.ink, 2);
    if (side >= FINE) paintPin(context, this.grid.rect(table[0]), Math.max(3, side * 0.14), palette);
  }

  centre(block) {
    const { x, y, width } = this.grid.rect(block);
    return { x: x + width / 2, y: y + width / 2 };
  }

  paintMarks() {
    const now = performance.now();
    const still = reducedMotion();
    for (const [block, { event, start }] of this.marks) {
      const age = still ? 0 : (now - start) / MARK_FADES;
      if (age >= 1) this.marks.delete(block);
      else this.paintMark(this.grid.rect(block), event, 1 - age * age);
    }
    clearTimeout(this.timer);
    if (this.marks.size && !still) this.timer = setTimeout(() => this.surface.request(), MARK_EVERY);
  }

  /** Allocated: a ring. Hit: two rings. Copied: a ring and a wedge that points in. Evicted: a broken ring. */
  paintMark({ x, y, width }, event, alpha) {
    const { context, palette } = this.surface;
    const { gap, tiny } = this.grid;
    const colours = { [EVENT_HIT]: OKABE_ITO.yellow, [EVENT_COPIED]: OKABE_ITO.red };
    const colour = colours[event] ?? palette.ink;
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    const line = Math.min(2.5, Math.max(1.5, gap * 0.6));
    if (tiny) context.fillRect(x, y, Math.max(width, 2), Math.max(width, 2));
    else {
      if (event === EVENT_HIT) this.ring(x, y, width, line + 1.5, "#1b1b1f", -0.75); // yellow is not seen on white
      if (event === EVENT_EVICTED) context.setLineDash([line * 1.7, line * 1.3]);
      this.ring(x, y, width, line, colour, 0);
      context.setLineDash([]);
    }
    if (width >= FINE && event === EVENT_HIT) this.ring(x, y, width, 1.5, colour, -line - 2);
    if (width >= FINE && event === EVENT_COPIED) paintWedge(context, x, y + width / 2, width * 0.3, colour, palette);
    context.globalAlpha = 1;
  }

  /** A ring around a box; `out`: how much further out than its edge. */
  ring(x, y, width, line, colour, out) {
    const { context } = this.surface;
    const inset = -out - line / 2 + (width < FINE ? line / 2 : 0);
    const corner = Math.min(width * 0.17, 7) - inset;
    context.beginPath();
    context.roundRect(x + inset, y + inset, width - 2 * inset, width - 2 * inset, Math.max(0, corner));
    Object.assign(context, { strokeStyle: colour, lineWidth: line });
    context.stroke();
  }

  /** A strong outline with an edge in the background's colour; around a tiny block it is bigger than the block. */
  outline(block, colour, line) {
    const { x, y, width } = this.grid.rect(block);
    const grow = Math.max(0, (8 - width) / 2);
    this.ring(x - grow, y - grow, width + 2 * grow, line + 2, this.surface.palette.background, -1);
    this.ring(x - grow, y - grow, width + 2 * grow, line, colour, 0);
  }

  // ---- pointer and keys

  listen() {
    const { canvas } = this;
    canvas.tabIndex = 0;
    canvas.addEventListener("pointermove", (event) => this.point(this.blockUnder(event)));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("blur", () => this.point(null));
    canvas.addEventListener("click", (event) => this.clicked(this.blockUnder(event)));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  blockUnder(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.state ? this.blockAt(event.clientX - box.left, event.clientY - box.top) : null;
  }

  point(block) {
    if (block === this.pointed) return;
    this.pointed = block;
    this.canvas.style.cursor = block !== null && this.state.pool.state[block] === USED ? "pointer" : "default";
    this.calls.onHover?.(block);
    this.surface.request();
  }

  /** The next of the block's sequences, or none where nobody holds it. */
  clicked(block) {
    if (block !== null) this.cursor = block;
    const ids = block === null ? [] : holdersOf(this.state, block).map(({ sequence }) => sequence.id);
    const next = ids.length ? ids[(ids.indexOf(this.followed) + 1) % ids.length] : null;
    if (next !== this.followed) this.choose(next);
  }

  /** Follow because the reader said so, or because the followed one is gone. */
  choose(sequenceId) {
    this.follow(sequenceId);
    this.calls.onFollow?.(sequenceId);
  }

  key(event) {
    if (!this.state || event.ctrlKey || event.altKey || event.metaKey) return;
    const { columns } = this.layout();
    const last = this.state.pool.n - 1;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -last, End: last };
    if (event.key in moves) this.moveCursor(moves[event.key], last);
    else if (event.key === "Enter") this.clicked(this.cursor);
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** The first key shows the cursor, the next ones move it. Up and down stay within the column. */
  moveCursor(by, last) {
    const to = this.cursor + by;
    const far = Math.abs(by) === last;
    if (this.pointed === this.cursor && (far || (to >= 0 && to <= last))) {
      this.cursor = Math.min(last, Math.max(0, to));
    }
    this.point(this.cursor);
  }

  leave() {
    this.point(null);
    if (this.followed !== null) this.choose(null);
  }
}

/** A line from block to block, as the three points of a quadratic curve; long ones are bent, to be told apart. */
function curveBetween(from, to, pitch) {
  const [across, down] = [to.x - from.x, to.y - from.y];
  const length = Math.hypot(across, down) || 1;
  const bow = length < 1.5 * pitch ? 0 : Math.min(length * 0.12, pitch * 0.8) / length;
  const bend = { x: from.x + across / 2 - down * bow, y: from.y + down / 2 + across * bow };
  return [from, bend, to];
}

/** In the middle of a curve, pointing along it. */
function paintArrowhead(context, [from, bend, to], size, palette) {
  context.save();
  context.translate((from.x + 2 * bend.x + to.x) / 4, (from.y + 2 * bend.y + to.y) / 4);
  context.rotate(Math.atan2(to.y - from.y, to.x - from.x));
  context.beginPath();
  context.moveTo(size * 0.55, 0);
  context.lineTo(-size * 0.45, size * 0.55);
  context.lineTo(-size * 0.45, -size * 0.55);
  context.closePath();
  fillWithEdge(context, palette.ink, palette);
  context.restore();
}

/** A disc on the upper left corner of a box. */
function paintPin(context, { x, y }, radius, palette) {
  context.beginPath();
  context.arc(x + 1, y + 1, radius, 0, 7);
  fillWithEdge(context, palette.ink, palette);
}

/** A triangle with its tip to the right, a little inside a box that begins at x. */
function paintWedge(context, x, y, most, colour, palette) {
  const size = Math.min(8, most);
  context.beginPath();
  context.moveTo(x + size, y);
  context.lineTo(x - size * 0.4, y - size * 0.8);
  context.lineTo(x - size * 0.4, y + size * 0.8);
  context.closePath();
  fillWithEdge(context, colour, palette);
}

/** The path so far, filled, with an edge in the background's colour around it. */
function fillWithEdge(context, colour, palette) {
  Object.assign(context, { strokeStyle: palette.background, lineWidth: 2, lineJoin: "round", fillStyle: colour });
  context.stroke();
  context.fill();
}
