// Downsamples many points to few buckets: mean, lowest and highest of each range of steps, so that no spike is lost.
export const single = (step, value) => ({ from: step, to: step, count: 1, mean: value, low: value, high: value });

// At most `most` buckets, over ranges of equal length; the newest point keeps its own bucket, shown as "now".
export function merged(buckets, most) {
  if (buckets.length <= most) return buckets;
  const [first, last] = [buckets[0].from, buckets.at(-1).to];
  const places = Math.max(1, most - 1), found = [];
  let open = -1;
  for (const each of buckets.slice(0, -1)) {
    const place = Math.floor(((middle(each) - first) * places) / (last - first + 1));
    if (place === open) found[found.length - 1] = joined(found.at(-1), each);
    else found.push(each);
    open = place;
  }
  return [...found, buckets.at(-1)];
}

export const middle = ({ from, to }) => (from + to) / 2;

// The buckets between two steps, and one more on either side, so that lines run to the edge.
export function within(buckets, from, to) {
  let first = buckets.findIndex((each) => each.to >= from);
  if (first < 0) first = buckets.length;
  let end = buckets.length;
  while (end > first && buckets[end - 1].from > to) end--;
  return buckets.slice(Math.max(0, first - 1), end + 1);
}

function joined(a, b) {
  const count = a.count + b.count;
  return {
    from: a.from, to: b.to, count, mean: (a.mean * a.count + b.mean * b.count) / count,
    low: Math.min(a.low, b.low), high: Math.max(a.high, b.high),
  };
}

// The bucket nearest to a step.
export function nearest(buckets, step) {
  let low = 0, high = buckets.length - 1;
  while (low < high) {
    const half = (low + high) >> 1;
    if (middle(buckets[half]) < step) low = half + 1; else high = half;
  }
  const [before, after] = [buckets[low - 1], buckets[low]];
  return before && step - middle(before) <= middle(after) - step ? before : after;
}
