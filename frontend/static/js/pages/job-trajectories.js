// What the model writes.
import { followJob, seed } from "./job-frame.js";
import { openSamples } from "./trajectories/opening.js";
import { StepReader } from "./trajectories/step-reader.js";

const section = document.querySelector(".reading");
const reader = section.querySelector("[data-follow]") && new StepReader(section, seed.sampled_step); // what was searched for stays
openSamples(section);
followJob({ onNews: (news) => reader?.news(news.sampled_step) });
