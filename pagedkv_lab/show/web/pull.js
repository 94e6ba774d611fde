// The pull loop: the browser asks for a step, the kernel runs it and answers, the browser asks for the next one.
//
// Knows Run, Pause, Step, the speed, and tickets. Does not know the engine, the frames or the buttons.
//
// Why the browser leads: while a notebook's cell runs, the kernel does not hear a button. A kernel that only
// ever runs one short step at a time hears everything: a prompt, a fork, Pause.

/** Steps a second by the slider's position; null: as many as the kernel can. */
const SPEEDS = [1, 2, 5, 10, null];
const DEFAULT_SPEED = 3;
/** Steps that are owed at most, when Step is pressed faster than the kernel answers. */
const MOST_STEPS_OWED = 10;
const LATE_AFTER_MS = 1000;

/** What the slider at `position` means, in words. */
function speedLabel(position, noun) {
  const speed = SPEEDS[position];
  return speed === null ? "as fast as it goes" : `${plural(speed, noun)} a second`;
}

class PullLoop {
  /** send(message) to the kernel; changed() is called whenever something a view shows has changed. */
  constructor(send, changed) {
    this.send = send;
    this.changed = changed;
    this.wanted = false; // Run was pressed, and not Pause
    this.ended = false; // the kernel said that there is nothing left to run
    this.owed = 0; // presses of Step that are not answered yet
    this.speed = DEFAULT_SPEED;
    this.ticket = null; // of the one step in flight
    this.lastTicket = Date.now(); // so that a reloaded page does not take an old answer for its own
    this.isLate = false;
    this.timer = null;
    this.sentAt = 0;
  }

  get running() {
    return this.wanted && !this.ended;
  }

  run() {
    this.wanted = true;
    this.ended = false;
    this.pump();
  }

  /** The step in flight is finished; no other begins. */
  pause() {
    this.wanted = false;
    this.owed = 0;
    this.pump();
  }

  /** One step, and no more: running on is over. */
  step() {
    this.wanted = false;
    this.ended = false;
    this.owed = Math.min(this.owed + 1, MOST_STEPS_OWED);
    this.pump();
  }

  setSpeed(position) {
    this.speed = position;
    this.pump();
  }

  /** There may be work again: a prompt was added, or a sequence was forked. */
  hasWork() {
    this.ended = false;
    this.pump();
  }

  /** The kernel's answer to the step with this ticket. more: whether there is something left to run. */
  done(ticket, more) {
    if (ticket !== this.ticket) return; // another browser's
    this.ticket = null;
    this.isLate = false;
    this.owed = Math.max(0, this.owed - 1);
    if (!more) {
      this.ended = true;
      this.owed = 0;
    }
    this.pump();
  }

  /** No kernel any more, or another engine: whatever was in flight will not be answered. */
  reset() {
    clearTimeout(this.timer);
    Object.assign(this, { wanted: false, ended: false, owed: 0, ticket: null, isLate: false, timer: null });
    this.changed();
  }

  /** Send the next step, or see to it that it is sent when its time has come. */
  pump() {
    if (this.ticket === null) {
      clearTimeout(this.timer);
      this.timer = null;
      if (this.owed) this.sendStep(1);
      else if (this.running) this.sendWhenDue();
    }
    this.changed();
  }

  sendWhenDue() {
    const speed = SPEEDS[this.speed];
    const wait = speed === null ? 0 : this.sentAt + 1000 / speed - performance.now();
    if (wait > 0) this.timer = setTimeout(() => this.pump(), wait);
    else this.sendStep(speed === null ? null : 1);
  }

  sendStep(steps) {
    this.lastTicket += 1;
    this.ticket = this.lastTicket;
    this.sentAt = performance.now();
    this.timer = setTimeout(() => this.late(), LATE_AFTER_MS);
    this.send({ do: "step", ticket: this.ticket, steps });
  }

  late() {
    this.isLate = true;
    this.changed();
  }
}
