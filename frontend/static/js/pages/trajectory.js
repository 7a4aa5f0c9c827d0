// One trajectory, token by token.
import { chooseColouring } from "./trajectories/colouring.js";
import { readTokens } from "./trajectories/tokens.js";

const box = document.querySelector("[data-tokens]");
chooseColouring(box);
readTokens(box);
