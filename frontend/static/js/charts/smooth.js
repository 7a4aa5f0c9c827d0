// Exponential moving average. A point's weight halves every `halfLife` steps, so the curve does not depend on the number of
// buckets; it starts at the first value, not at zero.
import { middle } from "./buckets.js";

export function smoothed(buckets, halfLife) {
  let sum = 0, weight = 0, before = null;
  return buckets.map((each) => {
    const at = middle(each);
    const fades = before === null ? 0 : 2 ** ((before - at) / halfLife);
    before = at;
    sum = sum * fades + each.mean * each.count;
    weight = weight * fades + each.count;
    return sum / weight;
  });
}
