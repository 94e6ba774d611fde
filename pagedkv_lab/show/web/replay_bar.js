// The replay's controls: a slider over the frames, play, one frame on or back, speed.
//
// Knows a ReplaySource. Does not know recordings, nor how a frame is drawn.

class ReplayBar {
  constructor(host, source) {
    this.source = source;
    this.waiting = null; // position to go to in the next animation frame
    this.icons = { run: icon("run"), pause: icon("pause") };
    this.toggle = element("button", { type: "button", class: "pkv-go", onclick: () => source.toggle() });
    this.toggle.append(this.icons.run, this.icons.pause);
    this.back = iconButton("back", "", moveButton("previous frame ( , )", () => source.move(-1)));
    this.next = iconButton("step", "", moveButton("next frame ( . )", () => source.move(1)));
    this.slider = element("input", { type: "range", min: 0, step: 1, class: "pkv-scrub", "aria-label": "frame" });
    this.slider.addEventListener("input", () => this.scrub());
    this.label = element("output", { class: "pkv-frame-label" });
    this.speed = new SpeedSlider(source.speed, "frame", (position) => source.setSpeed(position));
    host.append(this.back, this.toggle, this.next, this.slider, this.label, this.speed.node);
  }

  /** Where the slider is dragged faster than frames can be drawn, some are left out. */
  scrub() {
    if (this.waiting === null) requestAnimationFrame(() => this.goThere());
    this.waiting = Number(this.slider.value);
  }

  goThere() {
    const position = this.waiting;
    this.waiting = null;
    this.source.goTo(position);
  }

  draw() {
    const { running, length, position, speed } = this.source;
    const last = this.source.player?.frames[length - 1]?.step ?? 0;
    const text = length ? `step ${this.source.state.step} of ${last}` : "no frames";
    setAttribute(this.icons.run, "hidden", running);
    setAttribute(this.icons.pause, "hidden", !running);
    setAttribute(this.toggle, "aria-pressed", String(running));
    setAttribute(this.toggle, "aria-label", running ? "pause" : "play");
    setAttribute(this.toggle, "title", running ? "pause (space)" : "play (space)");
    setAttribute(this.slider, "max", Math.max(0, length - 1));
    if (this.waiting === null) this.slider.value = position;
    this.slider.style.setProperty("--played", length > 1 ? `${(100 * position) / (length - 1)}%` : "100%");
    setAttribute(this.slider, "aria-valuetext", text);
    setText(this.label, text);
    this.toggle.disabled = this.slider.disabled = length < 2;
    this.back.disabled = position === 0;
    this.next.disabled = position >= length - 1;
    this.speed.draw(speed);
  }
}

function moveButton(label, onclick) {
  return { "aria-label": label, title: label, onclick };
}
