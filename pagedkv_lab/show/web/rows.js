// The contiguous baseline beside the pool: one bar a row, and a request keeps a whole row from its first token on.
//
// Knows `state.baseline`. Does not know the pool, nor what decides who gets a row.

const ROWS_HEIGHT = 260; // CSS px for all rows; more of them stand in columns, side by side
const ROW_PITCH = 26; // CSS px from one row to the next, at most
const ROW_PITCH_READABLE = 15; // below which there is no label
const ROW_COLUMNS = 8; // at most
const ROW_COLUMN_GAP = 10; // CSS px

class RowsCanvas {
  constructor(host) {
    this.surface = new Surface(host, "pkv-rows", () => this.paint());
  }

  draw(state) {
    this.state = state;
    this.surface.canvas.setAttribute("aria-label", rowsLabel(state.baseline));
    this.surface.request();
  }

  destroy() {
    this.surface.destroy();
  }

  paint() {
    const rows = this.state?.baseline?.rows ?? [];
    const { surface } = this;
    const columns = Math.max(1, Math.min(ROW_COLUMNS, Math.ceil((rows.length * ROW_PITCH_READABLE) / ROWS_HEIGHT)));
    const high = Math.ceil(rows.length / columns); // rows in a column
    const pitch = Math.max(2, surface.snap(Math.min(ROW_PITCH, ROWS_HEIGHT / high)));
    const gap = pitch < 6 ? 1 : surface.snap(Math.max(2, pitch * 0.2));
    const across = (surface.width + ROW_COLUMN_GAP) / columns;
    const width = surface.snap(across - ROW_COLUMN_GAP);
    surface.clear(Math.max(1, high * pitch - gap));
    rows.forEach((row, i) => {
      const [x, y] = [surface.snap(Math.floor(i / high) * across), (i % high) * pitch];
      this.paintRow(row, { x, y, width, height: pitch - gap });
    });
  }

  paintRow({ request, filled }, box) {
    const { context, palette } = this.surface;
    const { x, y, width, height } = box;
    context.beginPath();
    context.roundRect(x + 0.5, y + 0.5, width - 1, height - 1, Math.min(4, height * 0.25));
    if (request === null) {
      Object.assign(context, { strokeStyle: palette.line, lineWidth: 1 });
      return context.stroke();
    }
    const colour = requestColour(this.state.sequences, request);
    const wide = this.surface.snap((width * filled) / this.state.baseline.row_slots);
    context.save();
    context.beginPath();
    context.roundRect(x, y, width, height, Math.min(4, height * 0.25));
    context.clip();
    paintHatched(context, x, y, width, height, colour, Math.max(6, height * 0.4));
    context.fillStyle = colour;
    context.fillRect(x, y, wide, height);
    context.restore();
    if (height >= 11) this.labelRow(request, filled, box, wide, colour);
  }

  /** The request in its filled part or, where that is too short, behind it; how many slots, at the right. */
  labelRow(request, filled, { x, y, width, height }, wide, colour) {
    const { surface } = this;
    const { context } = surface;
    const middle = y + height / 2;
    context.font = surface.font(Math.min(12, height * 0.68), 600);
    const name = `request ${request}`;
    const long = context.measureText(name).width;
    const inside = wide > long + 14;
    const left = x + (inside ? 8 : wide + 10);
    if (left + long + 5 > x + width) return;
    if (inside) paintLabel(context, name, left + long / 2, middle, textOn(colour));
    else this.labelOnGround(name, left, middle, height);
    context.font = surface.font(Math.min(11.5, height * 0.66));
    const slots = `${withCommas(filled)} / ${withCommas(this.state.baseline.row_slots)}`;
    const start = x + width - 10 - context.measureText(slots).width;
    if (start > Math.max(x + wide, left + long) + 14) this.labelOnGround(slots, start, middle, height);
  }

  /** Text on a plain ground, which the hatching would make hard to read. */
  labelOnGround(text, left, middle, height) {
    const { context, palette } = this.surface;
    const long = context.measureText(text).width;
    const high = Math.min(height - 4, 16);
    context.beginPath();
    context.roundRect(left - 5, middle - high / 2, long + 10, high, 3);
    context.fillStyle = withAlpha(palette.background, 0.88);
    context.fill();
    paintLabel(context, text, left + long / 2, middle, palette.ink);
  }
}

/** The colour of the request's first sequence, so that it has the same one here and in the pool. */
function requestColour(sequences, request) {
  return sequenceColour(sequences.find((sequence) => sequence.request === request)?.id ?? request);
}

function rowsLabel(baseline) {
  const rows = baseline?.rows ?? [];
  const taken = rows.filter(({ request }) => request !== null);
  const filled = taken.reduce((sum, row) => sum + row.filled, 0);
  return (
    `Contiguous baseline: ${plural(rows.length, "row")} of ${plural(baseline?.row_slots ?? 0, "slot")}, ` +
    `${taken.length} taken; ${withCommas(filled)} of their slots filled.`
  );
}
