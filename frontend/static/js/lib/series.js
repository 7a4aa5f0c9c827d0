// Named series as they come: sums of stretches of steps from the server (bands), then single points. A later point of a
// step replaces the earlier one. Each change makes a new `version`, so that only what changed is drawn again.
//
// A bucket is what is known of the steps `from` to `to`: how many points there are, their mean, lowest and highest.
import { merged, single } from "../charts/buckets.js";

const MOST_KEPT = 4_000; // buckets of one series: a page that stays open for weeks stays small

export class SeriesStore {
  #lines = new Map();
  #version = 0;
  #cuts = 0;

  // As GET /jobs/{id}/metrics answers. Of what is known of these series already, only what is newer is kept.
  replace({ series, bands = {}, counts = {} }) {
    for (const [name, line] of Object.entries(series)) {
      const fresh = bucketsOf(line, bands[name], counts[name]), end = fresh.at(-1)?.to ?? -1;
      this.#set(name, [...fresh, ...this.buckets(name).filter(({ from }) => from > end)]);
    }
  }

  add(news) {
    for (const [name, points] of Object.entries(news)) {
      const line = [...(this.#lines.get(name)?.buckets ?? [])];
      for (const [step, value] of points) put(line, step, value);
      this.#set(name, line.length > MOST_KEPT ? merged(line, MOST_KEPT / 2) : line);
    }
  }

  // A later attempt goes on after this step: what was beyond it is undone.
  cutAfter(last) {
    this.#cuts++;
    for (const [name, { buckets }] of this.#lines) {
      if (buckets.length && buckets.at(-1).to > last) this.#set(name, buckets.filter((each) => each.to <= last));
    }
  }

  // For who asks the server: whether nothing was undone meanwhile.
  sinceCut() { const before = this.#cuts; return () => this.#cuts === before; }

  buckets(name) { return this.#lines.get(name)?.buckets ?? []; }

  version(name) { return this.#lines.get(name)?.version ?? 0; }

  names() { return [...this.#lines.keys()]; }

  // The steps of all of them together.
  extent() {
    const known = [...this.#lines.values()].filter(({ buckets }) => buckets.length);
    return [Math.min(...known.map(({ buckets }) => buckets[0].from)), Math.max(...known.map(({ buckets }) => buckets.at(-1).to))];
  }

  #set(name, buckets) { this.#lines.set(name, { buckets, version: ++this.#version }); }
}

// A mean is told with the last step of its stretch; the stretch begins behind the one before it.
export function bucketsOf(line, band, counts) {
  if (!band) return line.map(([step, value]) => single(step, value));
  let before = -1;
  return line.map(([to, mean], i) => {
    const count = counts?.[i] ?? 1;
    const from = count === 1 ? to : Math.max(before + 1, i === 0 ? to - count + 1 : 0);
    before = to;
    return { from, to, count, mean, low: band[i][1], high: band[i][2] };
  });
}

function put(line, step, value) {
  let at = line.length;
  while (at > 0 && line[at - 1].from > step) at--;
  const before = line[at - 1];
  if (before?.from === step && before.count === 1) line[at - 1] = single(step, value);
  else if (!before || before.to < step) line.splice(at, 0, single(step, value));
} // within a stretch: it is in its mean already
