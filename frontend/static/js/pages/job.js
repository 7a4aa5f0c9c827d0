// A tab whose live content is all in regions.
import { followJob } from "./job-frame.js";

followJob();
