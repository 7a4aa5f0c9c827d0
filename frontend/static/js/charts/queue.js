// Who draws when. One drawing a frame at most, each chart once in a while however fast news come, and none while nobody
// looks at the page: then it is only noted what is owed.
const BETWEEN_DRAWINGS_MS = 1_000; // of one chart
const WHILE_NOTHING_IS_SEEN_MS = 5_000; // of one whose news are less than a pixel: numbers beside it are told at once

export class DrawQueue {
  #owed = new Map(); // who draws → from when on
  #drawnAt = new WeakMap();
  #frame = 0;
  #timer = 0;

  constructor() { document.addEventListener("visibilitychange", () => this.#next()); }

  // `soon`: at once, because somebody touched something. `isTiny`: nobody would see what is new.
  ask(chart, { soon = false, isTiny = false } = {}) {
    const due = soon ? 0 : (this.#drawnAt.get(chart) ?? -Infinity) + (isTiny ? WHILE_NOTHING_IS_SEEN_MS : BETWEEN_DRAWINGS_MS);
    this.#owed.set(chart, Math.min(due, this.#owed.get(chart) ?? Infinity));
    this.#next();
  }

  forget(chart) { this.#owed.delete(chart); }

  #next() {
    if (document.hidden || this.#frame || !this.#owed.size) return;
    clearTimeout(this.#timer);
    const wait = Math.min(...this.#owed.values()) - performance.now();
    if (wait > 0) this.#timer = setTimeout(() => this.#next(), wait);
    else this.#frame = requestAnimationFrame(() => { this.#frame = 0; this.#drawOne(); this.#next(); });
  }

  #drawOne() {
    if (document.hidden) return;
    const now = performance.now();
    for (const [chart, due] of this.#owed) { // the one that waits longest
      if (due > now) continue;
      this.#owed.delete(chart);
      this.#drawnAt.set(chart, now);
      chart.draw();
      return;
    }
  }
}
