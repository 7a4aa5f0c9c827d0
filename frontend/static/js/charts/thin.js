// At most so many points, keeping of each stretch its lowest and highest: no spike is smoothed away.
export function thin(points, most = 500) {
  if (points.length <= most) return points;
  const stretches = Math.floor((most - 2) / 2);
  const kept = [points[0]];
  for (let i = 0; i < stretches; i++) {
    const from = 1 + Math.floor((i * (points.length - 2)) / stretches);
    const upto = 1 + Math.floor(((i + 1) * (points.length - 2)) / stretches);
    let low = from, high = from;
    for (let at = from; at < upto; at++) {
      if (points[at][1] < points[low][1]) low = at;
      if (points[at][1] > points[high][1]) high = at;
    }
    kept.push(points[Math.min(low, high)]);
    if (low !== high) kept.push(points[Math.max(low, high)]);
  }
  kept.push(points.at(-1));
  return kept;
}
