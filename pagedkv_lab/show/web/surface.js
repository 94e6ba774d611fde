// A canvas that fills its host's width and stays sharp, and repaints when its width or the page's theme changes.
//
// Knows pixel ratios and the theme. Does not know what is painted.
//
// All lengths are CSS pixels. A canvas has `devicePixelRatio` times as many device pixels; its context is scaled, so
// that only code that wants sharp edges has to think of them.

/**
 * A canvas as wide as its host. It calls `paint()` in an animation frame after `request()`, and by itself when the
 * width, the theme or the pixel ratio is another.
 */
class Surface {
  /** bleed: how far the canvas reaches out of its host on each side, for what lies around the picture proper. */
  constructor(host, className, paint, bleed = 0) {
    Object.assign(this, { host, paint, bleed });
    this.canvas = document.createElement("canvas");
    this.canvas.className = className;
    this.canvas.setAttribute("role", "img");
    Object.assign(this.canvas.style, { display: "block", margin: `${-bleed}px` });
    this.canvas.style.maxWidth = `calc(100% + ${2 * bleed}px)`; // else its host could never become narrower
    this.canvas.width = this.canvas.height = 0;
    host.append(this.canvas);
    this.context = this.canvas.getContext("2d");
    this.pending = 0;
    this.palette = null; // a new object when a colour has changed
    this.isStale = true; // the palette may be another
    this.observer = new ResizeObserver(() => this.request());
    this.observer.observe(host);
    this.stopWatching = watchTheme(() => {
      this.isStale = true;
      this.request();
    });
  }

  request() {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      if (!this.measure()) return; // nobody sees it
      if (this.isStale) this.takePalette();
      this.paint();
    });
  }

  takePalette() {
    this.isStale = false;
    const palette = readPalette(this.host);
    if (JSON.stringify(palette) !== JSON.stringify(this.palette)) this.palette = palette;
  }

  /** Sets `ratio` (device pixels a CSS pixel) and `width` (whole device pixels); false where there is no width. */
  measure() {
    this.ratio = window.devicePixelRatio || 1;
    const room = this.host.getBoundingClientRect().width;
    this.width = this.snap(room + 2 * this.bleed);
    return room > 0;
  }

  /** Makes the canvas `height` high and empties it. */
  clear(height) {
    const [wide, high] = [Math.round(this.width * this.ratio), Math.round(height * this.ratio)];
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      Object.assign(this.canvas, { width: wide, height: high }); // empties it, too
      Object.assign(this.canvas.style, { width: `${wide / this.ratio}px`, height: `${high / this.ratio}px` });
    }
    this.context.setTransform(1, 0, 0, 1, 0, 0);
    this.context.clearRect(0, 0, wide, high);
    this.context.scale(this.ratio, this.ratio);
  }

  /** The length in whole device pixels, not longer. */
  snap(length) {
    return Math.floor(length * this.ratio + 1e-6) / this.ratio;
  }

  font(size, weight = 400) {
    return `${weight} ${size}px ${this.palette.font}`;
  }

  destroy() {
    cancelAnimationFrame(this.pending);
    this.observer.disconnect();
    this.stopWatching();
    this.canvas.remove();
  }
}
