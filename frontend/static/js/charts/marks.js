// Marks at steps, from the job's events: a resumed attempt, a checkpoint, an evaluation.
const SEEN_APART_PX = 5;

export class Marks {
  #found = []; // { kind, step }
  version = 0;

  add(events) {
    for (const { type, data } of events) {
      const mark = markOf(type, data);
      if (!mark || this.#found.some(({ kind, step }) => kind === mark.kind && step === mark.step)) continue;
      this.#found.push(mark);
      this.version++;
    }
  }

  has(kind) { return this.#found.some((each) => each.kind === kind); }

  // As Plotly shapes; of marks too close together, only the first of each kind.
  shapes(range, axis, { line, text, second }, width = 280) {
    const [x0, x1] = range.map(axis.at), last = {}, found = [];
    for (const { kind, step } of this.#found.toSorted((a, b) => a.step - b.step)) {
      const x = axis.at(step);
      if (x < x0 || x > x1 || x - (last[kind] ?? -Infinity) < ((x1 - x0) * SEEN_APART_PX) / width) continue;
      last[kind] = x;
      const common = { type: "line", x0: x, x1: x, yref: "paper", layer: kind === "attempt" ? "below" : "above" };
      if (kind === "attempt") found.push({ ...common, y0: 0, y1: 1, line: { color: text, width: 1, dash: "dot" } });
      else found.push({ ...common, y0: 0, y1: 0.07, line: { color: kind === "evaluation" ? second : line, width: 2 } });
    }
    return found;
  }
}

export function markOf(type, data) {
  if (type === "checkpoint_saved") return { kind: "checkpoint", step: data.step };
  if (type === "evaluated") return { kind: "evaluation", step: data.version };
  return data?.attempt > 1 && "resume_step" in data ? { kind: "attempt", step: data.resume_step } : null;
}
