// Schedules drawing: at most one chart per frame, each chart at a limited rate, and none while the page is hidden: then
// charts are only queued.
const BETWEEN_DRAWINGS_MS = 1_000; // per chart
const WHILE_NOTHING_IS_SEEN_MS = 5_000; // for changes below a pixel; the numbers next to the chart update at once

export class DrawQueue {
  #owed = new Map(); // chart → earliest time
  #drawnAt = new WeakMap();
  #frame = 0;
  #timer = 0;

  constructor() { document.addEventListener("visibilitychange", () => this.#next()); }

  // `soon`: at once, after user input. `isTiny`: the change is not visible.
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
    for (const [chart, due] of this.#owed) { // oldest first
      if (due > now) continue;
      this.#owed.delete(chart);
      this.#drawnAt.set(chart, now);
      chart.draw();
      return;
    }
  }
}
