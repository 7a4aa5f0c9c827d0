// Staying up to date. The socket only ever says "there is more"; what there is comes by `pull`. A lost nudge costs a
// delay: every 15 s, on each reconnect and when the page is looked at again we pull anyway.
//
// While something is owed and the page is seen, a try begins at most TRY_EVERY_MS after the one before, whatever became of
// that: so the page is what the database is within that time and one answer of it. A try that hangs blocks no other.
//
// `goodAt` is when the page last was what the database was: at the start of a pull that was answered, or when the server
// told that it hears the database and we had nothing left to pull. Who waits for an answer that never comes is stale.
import { aroundIt, keepSocket } from "./socket.js";
import { Tries } from "./tries.js";

const SAFETY_NET_MS = 15_000;
const POLL_MS = 3_000; // without a socket
const TRY_EVERY_MS = 3_000; // at most, and at least two thirds of it: a thousand pages do not ask at the same moment
const AFTER_FAILURE_MS = 1_250; // about
const LOOK_EVERY_MS = 500;
const STALE_AFTER_MS = 5_000 - LOOK_EVERY_MS - 100; // said within 5 s: it is looked at every so often, by a timer that may be late
const GONE = [401, 403, 404];

// `pull(signal, answered)`: it calls `answered` with its first answer in hand, so that no other try says the same again.
export function stayLive(question, { pull, isNews = () => true, onStatus, betweenPullsMs = 250 }) {
  const tries = new Tries();
  let wanted = true, begunAt = 0, nextAt = 0, notBefore = 0, timer = 0;
  let goodAt = Date.now(), failed = false, refused = false, isOffline = false, more = false, isOver = false;
  const isStale = () => Date.now() - goodAt > STALE_AFTER_MS;

  const socket = keepSocket(question, {
    onOpen() { if (failed || isStale()) begin(); else want(); }, // what it asked did not answer; this does
    onSaid(said, heardAt) {
      if (!("beat" in said)) { if (isNews(said)) want(); }
      else if (!wanted && !tries.isAny && !failed) goodAt = Math.max(goodAt, heardAt - 1000 * said.beat);
    },
    onLost: want,
  });

  function tell() {
    isOffline = refused && (isOffline || !socket.isOpen()); // a socket that comes and goes is no news
    if (isOver) onStatus("signed-out", goodAt);
    else if (isOffline) onStatus("offline", goodAt);
    else if (isStale() && !document.hidden) onStatus("stale", goodAt);
    else onStatus(more ? "catching-up" : socket.isOpen() ? "live" : "polling", goodAt);
  }

  function want() { wanted = true; plan(); }

  function plan() {
    clearTimeout(timer);
    const isOwed = tries.isAny ? !document.hidden : wanted;
    if (isOver || !isOwed) return;
    const gap = document.hidden ? SAFETY_NET_MS : more ? 0 : betweenPullsMs;
    const at = tries.isAny ? nextAt : Math.max(begunAt + gap, notBefore);
    timer = setTimeout(begin, Math.max(0, at - Date.now()));
  }

  function begin() {
    if (isOver) return;
    if (!tries.isAny) wanted = false; // what comes from now on is in no answer yet
    begunAt = Date.now();
    nextAt = begunAt + TRY_EVERY_MS * (2 + Math.random()) / 3;
    tryToPull(begunAt);
    plan();
  }

  async function tryToPull(startedAt) {
    const ended = await tries.add(pull);
    if (!ended) return;
    if (ended.failure) missed(ended);
    else {
      more = ended.value;
      wanted ||= more;
      goodAt = Math.max(goodAt, startedAt);
      failed = refused = false;
      notBefore = 0;
    }
    tell();
    plan();
  }

  function missed({ failure, isTired }) {
    if (GONE.includes(failure.status)) { isOver = true; socket.end(); tries.leave(); }
    wanted = failed = true;
    refused = !isTired;
    notBefore = Math.min(Date.now() + aroundIt(AFTER_FAILURE_MS), begunAt + TRY_EVERY_MS);
  }

  function look() {
    if (!document.hidden) { socket.leaveIfDeaf(); if (!socket.isOpen() && Date.now() - begunAt > POLL_MS) want(); }
    tell();
  }

  const wake = () => { if (!document.hidden) { wanted = true; socket.wake(); if (Date.now() - begunAt > betweenPullsMs) begin(); else plan(); } };
  addEventListener("online", wake);
  document.addEventListener("visibilitychange", wake);
  addEventListener("pageshow", (event) => { if (event.persisted) wake(); });
  setInterval(want, SAFETY_NET_MS);
  setInterval(look, LOOK_EVERY_MS);
  socket.connect();
}
