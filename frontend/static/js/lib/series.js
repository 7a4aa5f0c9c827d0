// Points of named series, as they come. A later point of a step replaces the earlier one.
import { thin } from "../charts/thin.js";

const MOST_KEPT = 4_000; // of one series; then it is thinned, so that a page that stays open for weeks stays small

export class SeriesStore {
  #lines = new Map();

  add(news) {
    for (const [name, points] of Object.entries(news)) {
      const line = this.#lines.get(name) ?? new Map();
      for (const [step, value] of points) line.set(step, value);
      this.#lines.set(name, line.size > MOST_KEPT ? new Map(thin([...line].sort(byStep), MOST_KEPT / 2)) : line);
    }
  }

  points(name) { return [...(this.#lines.get(name) ?? [])].sort(byStep); }

  last(name) { return this.points(name).at(-1) ?? null; }
}

const byStep = (a, b) => a[0] - b[0];
