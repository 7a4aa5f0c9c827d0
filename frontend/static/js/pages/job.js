// A tab of which all that moves is in its regions.
import { followJob } from "./job-frame.js";

followJob();
