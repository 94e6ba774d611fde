// Where a view's states come from: the kernel (LiveSource) or a recording (ReplaySource, in replay_source.js).
//
// Knows the messages between browser and kernel, and who listens. Does not know how a state is drawn. One source
// serves all views of a widget, so that two views of it show, and run, the same.

const CHECK_AFTER_MS = 500;

/** What both have: the state, and views that are told when something has changed. */
class Source {
  constructor(kind) {
    this.kind = kind;
    this.state = null;
    this.error = null;
    this.connected = true;
    this.subscribers = new Set();
  }

  /** Call `listener` after every change. Returns how to stop that. */
  subscribe(listener) {
    this.subscribers.add(listener);
    return () => this.subscribers.delete(listener);
  }

  changed() {
    for (const listener of this.subscribers) listener();
  }

  setError(text) {
    this.error = text;
    this.changed();
  }
}

/** Frames that the kernel pushes, or that the playground's loop pulls. */
class LiveSource extends Source {
  constructor(model) {
    super(model.get("kind"));
    this.model = model;
    this.details = new Map();
    this.loop = new PullLoop(
      (message) => this.send(message),
      () => this.changed(),
    );
    this.connectionTimer = null;
    this.adding = null; // the prompt that was sent and is not in a frame yet
    this.addingTimer = null;
    this.addIsLate = false;
    this.newestRequest = 0;
    this.said = ""; // what the kernel has to say to a screen reader, until the next frame
    model.on("change:frame", () => this.takeFrame());
    model.on("change:settings", () => this.changed());
    model.on("msg:custom", (message) => this.receive(message));
    model.on("comm_live_update", () => this.checkConnection());
    this.takeFrame();
  }

  get running() {
    return this.loop.running;
  }

  get phase() {
    if (this.kind !== "playground") return this.state?.phase ?? "idle";
    if (this.loop.running) return "running";
    if (this.state?.phase === "done") return "done"; // not `loop.ended`: an error ends the loop with work left
    return this.state?.step ? "paused" : "idle";
  }

  /** Has the kernel been silent for over a second? It is busy with a cell, or with a long step. */
  get isLate() {
    return this.connected && (this.loop.isLate || this.addIsLate);
  }

  get settings() {
    return this.model.get("settings") ?? {};
  }

  send(message) {
    if (this.connected) this.trySending(message);
  }

  /** The channel to a kernel that is gone throws; there is no other way to ask it whether it is open. */
  trySending(message) {
    try {
      this.model.send(message);
      this.setConnected(true);
    } catch {
      this.setConnected(false);
    }
  }

  setConnected(connected) {
    if (this.connected === connected) return;
    this.connected = connected;
    this.addingIsOver();
    this.loop.reset();
  }

  subscribe(listener) {
    const stop = super.subscribe(listener);
    this.tellViews();
    return () => {
      stop();
      this.tellViews();
    };
  }

  /** So that the kernel makes frames of a pool only while somebody looks. */
  tellViews() {
    if (this.kind === "pool") this.send(this.viewsMessage());
  }

  viewsMessage() {
    return { do: "views", count: this.subscribers.size };
  }

  /** The kernel restarts, or has come back: see, a moment later, whether it can still be reached. */
  checkConnection() {
    clearTimeout(this.connectionTimer);
    this.connectionTimer = setTimeout(() => this.trySending(this.viewsMessage()), CHECK_AFTER_MS);
  }

  takeFrame() {
    const before = this.state;
    this.state = decodeFrame(this.model, this.details);
    if (!this.state) return;
    if (before && isOtherPool(before.meta, this.state.meta)) this.details.clear();
    this.said = "";
    this.noticeRequests();
    this.changed();
  }

  /** A request that was not there before: the prompt that was sent, or one that a cell has added. */
  noticeRequests() {
    const newest = Math.max(0, ...this.state.sequences.map((sequence) => sequence.request));
    const isNew = newest > this.newestRequest;
    this.newestRequest = newest; // it may fall: a new engine counts from 1 again
    if (!isNew) return;
    this.addingIsOver();
    this.loop.hasWork();
  }

  addingIsOver() {
    clearTimeout(this.addingTimer);
    this.adding = null;
    this.addIsLate = false;
  }

  receive(message) {
    if (message.kind === "details") this.takeDetails(message.blocks);
    if (message.kind === "details" && !message.asked) return; // a frame follows at once, and one drawing is enough
    if (message.kind === "done") this.loop.done(message.ticket, message.more);
    if (message.kind === "say") this.said = message.text;
    if (message.kind === "error") {
      this.error = message.text || null;
      if (this.error) this.addingIsOver();
    }
    this.changed();
  }

  takeDetails(blocks) {
    for (const [block, [key, text]] of Object.entries(blocks)) this.details.set(Number(block), { key, text });
  }

  // What the reader asks for

  add(prompt, maxTokens, n) {
    this.adding = prompt;
    this.addingTimer = setTimeout(() => {
      this.addIsLate = true;
      this.changed();
    }, LATE_AFTER_MS);
    this.send({ do: "add", prompt, max_tokens: maxTokens, n });
    this.changed();
  }

  fork(sequence) {
    this.send({ do: "fork", sequence });
    this.loop.hasWork();
  }

  abort(request) {
    this.send({ do: "abort", request });
  }

  clear() {
    this.addingIsOver();
    this.send({ do: "clear" });
  }

  /** Another engine: what the old one was asked for is void. */
  rebuild(settings) {
    this.loop.reset();
    this.addingIsOver();
    this.send({ do: "rebuild", ...settings });
  }

  askDetails(block) {
    this.send({ do: "block", block });
  }

  close() {
    clearTimeout(this.connectionTimer);
    this.subscribers.clear();
    this.addingIsOver();
    this.loop.reset();
  }
}

function isOtherPool(one, other) {
  return one.num_blocks !== other.num_blocks || one.block_size !== other.block_size;
}
