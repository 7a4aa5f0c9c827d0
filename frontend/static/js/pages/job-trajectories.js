// The trajectories tab.
import { followJob, seed } from "./job-frame.js";
import { openSamples } from "./trajectories/opening.js";
import { StepReader } from "./trajectories/step-reader.js";

const section = document.querySelector(".reading");
const reader = section.querySelector("[data-follow]") && new StepReader(section, seed.sampled_step); // search results do not refresh
openSamples(section);
followJob({ onNews: (news) => reader?.news(news.sampled_step) });
