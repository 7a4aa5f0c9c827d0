// Maps a step to the axis: its number, the tokens trained on by then, or the time by then; and back. Interpolates linearly
// between known steps, and extrapolates beyond the last.
const SPANS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800, 1209600];

export const BY_STEP = { name: "step", at: (step) => step, stepAt: (x) => x, ticks: () => ({ tickformat: ",d", nticks: 6 }) };

// `knots`: [step, value] by step, at least two, with rising values.
export function axisOf(name, knots) {
  const steps = knots.map(([step]) => step), values = knots.map(([, value]) => value);
  return { name, at: (step) => along(steps, values, step), stepAt: (x) => along(values, steps, x), ticks: name === "time" ? spanTicks : () => ({ tickformat: "~s", nticks: 6 }) };
}

function along(xs, ys, x) {
  let low = 1, high = xs.length - 1;
  while (low < high) { const half = (low + high) >> 1; if (xs[half] < x) low = half + 1; else high = half; }
  const width = xs[low] - xs[low - 1];
  return width ? ys[low - 1] + ((x - xs[low - 1]) * (ys[low] - ys[low - 1])) / width : ys[low];
}

// 1, 2 and 5 of each decade, or fewer over many decades.
export function logTicks(values) {
  const low = Math.min(...values), high = Math.max(...values);
  if (!(high > 0)) return {};
  const decades = [];
  for (let at = Math.floor(Math.log10(low)); at <= Math.ceil(Math.log10(high)); at++) decades.push(at);
  const every = Math.ceil(decades.length / 6);
  const found = [[1, 2, 5], [1, 3], [1]].map((digits) => decades.filter((at) => at % every === 0).flatMap((at) => digits.map((digit) => digit * 10 ** at)))
    .map((each) => each.filter((at) => at >= low / 1.5 && at <= high * 1.5)).find((each) => each.length <= 5) ?? [];
  const tickvals = found.length > 1 ? found : [low, high];
  return { tickvals, ticktext: tickvals.map((at) => (at >= 1e-3 && at < 1e5 ? `${Number(at.toPrecision(2))}` : at.toExponential(0).replace("e+", "e"))) };
}

function spanTicks([from, to]) {
  const every = SPANS.find((each) => (to - from) / each <= 6) ?? 604800 * Math.ceil((to - from) / 604800 / 6);
  const tickvals = [];
  for (let at = Math.ceil(from / every) * every; at <= to; at += every) tickvals.push(at);
  return { tickvals, ticktext: tickvals.map(spanText) };
}

export function spanText(seconds) {
  if (seconds === 0) return "0";
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]], said = [];
  let left = Math.round(seconds);
  for (const [size, unit] of parts) {
    if (left >= size && said.length < 2) { said.push(`${Math.floor(left / size)} ${unit}`); left %= size; }
  }
  return said.join(" ");
}
