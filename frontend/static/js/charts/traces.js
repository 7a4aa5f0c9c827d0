// A series as Plotly traces: the range from lowest to highest as a polygon, the means, and the smoothed line on top.
import { middle } from "./buckets.js";

export function tracesOf(drawn, { label, tone, marks }, { axis, log, colours }) {
  const colour = colours[tone];
  const seen = isCut(drawn, log) ? drawn.map((each) => ({ ...each, mean: each.mean > 0 ? each.mean : null })) : drawn;
  const x = seen.map((each) => axis.at(middle(each))), y = seen.map(({ mean }) => mean);
  if (marks) return [{ name: label, x, y, mode: "markers", marker: { color: colours.surface, size: 8, line: { color: colour, width: 2 } }, cliponaxis: false }];
  const isSmooth = seen.some((each) => "smooth" in each);
  const found = seen === drawn && seen.some(({ count }) => count > 1) ? [bandOf(seen, x, { label, colour, log })] : [];
  found.push({
    name: label, x, y, mode: seen.length === 1 ? "markers" : "lines", marker: { color: colour, size: 5 },
    line: { color: colour, width: isSmooth ? 1 : 1.7 }, opacity: isSmooth ? 0.38 : 1,
  });
  if (isSmooth) found.push({ name: `${label}, smoothed`, x, y: seen.map(({ smooth }) => (log && smooth <= 0 ? null : smooth)), mode: "lines", line: { color: colour, width: 1.8 } });
  return found;
}

// Zero and negative values have no place on a log scale: draws a gap, and no band that would hide it.
export const isCut = (places, log) => log && places.some(({ mean }) => mean <= 0);

function bandOf(seen, x, { label, colour, log }) {
  const floor = log ? Math.min(...seen.flatMap(({ low, mean }) => (low > 0 ? [low] : [mean]))) : -Infinity;
  const high = seen.map((each) => each.high), low = seen.map((each) => Math.max(each.low, floor));
  return {
    name: `${label}, lowest to highest`, x: [...x, ...[...x].reverse()], y: [...high, ...low.reverse()],
    mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: colour, opacity: 0.17,
  };
}
