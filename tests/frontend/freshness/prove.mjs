// node prove.mjs ADDRESS_OF_LIVE_JS SEEDS: what pages of many seeds lived through, as JSON, for test_schedule.py to judge.
import { lived } from "./world.mjs";

const [, , address, seeds] = process.argv;
const live = await import(address);
const found = [];
for (const wire of ["socket", "http"]) for (const outage of ["refused", "stalled", "database away", "pull hangs"]) {
  for (let seed = 1; seed <= Number(seeds); seed++) found.push({ wire, outage, ...(await lived({ live, seed, outage, wire, until: 40_000 + 37 * seed })), until: 40_000 + 37 * seed });
}
const slow = [];
for (const wire of ["socket", "http"]) slow.push(await lived({ live, seed: 1, outage: null, wire, answersInMs: 12_000, until: 20_000, rest: 30_000 }));
console.log(JSON.stringify({ found, slow }));
