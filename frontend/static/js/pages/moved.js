// Links of before the tabs had addresses: what they point at stands in another tab now. The server never sees a fragment.
import { addressOf } from "./job-frame.js";

const PLACES = [[/^#reading$/, "trajectories/"], [/^#(ckpt_|region-checkpoints)/, "checkpoints/"]];

export function leadOn() {
  const [, place] = PLACES.find(([fragment]) => fragment.test(location.hash)) ?? [];
  if (place) location.replace(addressOf(place) + location.hash);
}
