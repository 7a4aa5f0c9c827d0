// A store of named series: bands (sums over ranges of steps) from the server, then single points. A later point of a step
// replaces the earlier one. Each change increases `version`, so that only changed series are redrawn.
//
// A bucket summarizes the steps `from` to `to`: count, mean, lowest and highest.
import { merged, single } from "../charts/buckets.js";

const MOST_KEPT = 4_000; // buckets of one series: a page that stays open for weeks stays small

export class SeriesStore {
  #lines = new Map();
  #version = 0;
  #cuts = 0;

  // `answer`: a response of GET /jobs/{id}/metrics. Of known points of these series, only newer ones are kept.
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

  // A later attempt resumes after this step: drops later points.
  cutAfter(last) {
    this.#cuts++;
    for (const [name, { buckets }] of this.#lines) {
      if (buckets.length && buckets.at(-1).to > last) this.#set(name, buckets.filter((each) => each.to <= last));
    }
  }

  // For pending requests: whether no points were dropped meanwhile.
  sinceCut() { const before = this.#cuts; return () => this.#cuts === before; }

  buckets(name) { return this.#lines.get(name)?.buckets ?? []; }

  version(name) { return this.#lines.get(name)?.version ?? 0; }

  names() { return [...this.#lines.keys()]; }

  // The range of steps of all these series.
  extent() {
    const known = [...this.#lines.values()].filter(({ buckets }) => buckets.length);
    return [Math.min(...known.map(({ buckets }) => buckets[0].from)), Math.max(...known.map(({ buckets }) => buckets.at(-1).to))];
  }

  #set(name, buckets) { this.#lines.set(name, { buckets, version: ++this.#version }); }
}

// A mean comes with the last step of its range; the range starts after the previous one.
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
} // within a range: already in its mean
