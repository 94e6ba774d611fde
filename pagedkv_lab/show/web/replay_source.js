// A view's states from a recording: moved through by hand, or played.
//
// Knows the player. Does not know the kernel, or how a state is drawn.

/** A recording's frames, moved through by hand or played. */
class ReplaySource extends Source {
  constructor() {
    super("replay");
    this.player = null;
    this.position = 0;
    this.playing = false;
    this.speed = DEFAULT_SPEED;
    this.timer = null;
    this.closed = false;
  }

  /** bytes: of the recording's file; start: the frame to show first. What is wrong becomes the view's error. */
  async load(bytes, start = 0) {
    try {
      this.player = new Player(await loadRecording(bytes));
      if (this.closed) return;
      if (this.length) this.seek(start);
      else this.setError("This recording has no frames: nothing ran while it was made.");
    } catch (error) {
      this.setError(error.message);
    }
  }

  get length() {
    return this.player?.length ?? 0;
  }

  get atEnd() {
    return this.position >= this.length - 1;
  }

  get running() {
    return this.playing;
  }

  get phase() {
    if (!this.length) return "idle";
    if (this.playing) return "running";
    return this.atEnd ? "done" : "paused";
  }

  seek(position) {
    if (!this.length) return;
    this.position = Math.max(0, Math.min(this.length - 1, position));
    this.state = this.player.at(this.position);
    if (this.atEnd) this.playing = false;
    this.schedule();
    this.changed();
  }

  /** Play on, from the start where the end was reached; or stop. */
  toggle() {
    if (!this.length) return;
    this.playing = !this.playing;
    if (this.playing && this.atEnd) this.position = -1;
    if (this.playing) this.seek(this.position + 1);
    else this.schedule();
    this.changed();
  }

  /** By hand, which ends playing. */
  goTo(position) {
    this.playing = false;
    this.seek(position);
  }

  /** By hand, `by` frames on or back. */
  move(by) {
    this.goTo(this.position + by);
  }

  setSpeed(position) {
    this.speed = position;
    this.schedule();
    this.changed();
  }

  schedule() {
    clearTimeout(this.timer);
    if (this.playing) this.timer = setTimeout(() => this.seek(this.position + 1), 1000 / (SPEEDS[this.speed] ?? 60));
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.subscribers.clear();
  }
}
