// The exponential mean of what came before. A point weighs half as much for every `halfLife` steps that it is older, so
// that the curve is the same however few places it is drawn in, and it begins at the first value, not at zero.
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
