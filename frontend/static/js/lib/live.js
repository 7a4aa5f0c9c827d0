// Keeps a page up to date. The socket notifies "there is more"; `pull` fetches the data, over the socket if it is open. A
// lost notification costs a delay: the page also pulls every 15 s and when it becomes visible again.
// While data is pending and the page is visible, a request starts at most TRY_EVERY_MS after the previous one, whatever
// its outcome: the page equals the database within that time plus one response. A hanging try blocks no other. A socket
// that worked and was then closed or refused counts as one: it connects again as often, and costs the server less.
//
// `goodAt` is when the page last equalled the database: at the start of a successful pull, at a heartbeat while nothing is
// pending, or when a new socket had no news. A page that waits for a missing response is stale.
import { Question } from "./question.js";
import { aroundIt, keepSocket } from "./socket.js";
import { Tries } from "./tries.js";
import { whenBack } from "./wake.js";

const SAFETY_NET_MS = 15_000;
const POLL_MS = 3_000; // without a socket
const TRY_EVERY_MS = 3_000; // at most, and at least two thirds: jitter, so that pages do not pull at the same moment
const AFTER_FAILURE_MS = 1_250; // about
const SOCKET_PATIENCE_MS = 10_000; // for an answer of a socket that is not silent: the server is slow, and knows the question
const LOOK_EVERY_MS = 500;
const STALE_AFTER_MS = 5_000 - LOOK_EVERY_MS - 100; // shown within 5 s: minus the check interval and a late timer
const GONE = [401, 403, 404];

// `pull(signal, answered, ask)`: calls `answered` on its first response, so that no other try applies the same data. `ask`
// sends a pull over the socket and resolves to its news; null: use HTTP.
export function stayLive(subscription, { pull, isNews = () => true, onStatus, betweenPullsMs = 250 }) {
  const tries = new Tries();
  let wanted = true, begunAt = 0, nextAt = 0, notBefore = 0, timer = 0;
  let goodAt = Date.now(), failed = false, refused = false, isOffline = false, more = false, isOver = false;
  const isStale = () => Date.now() - goodAt > STALE_AFTER_MS;
  const question = new Question((pulled) => socket.send(pulled));

  const socket = keepSocket(subscription, {
    onFrame(frame, receivedAt) {
      if ("beat" in frame) { if (!wanted && !tries.isAny && !failed) goodAt = Math.max(goodAt, receivedAt - 1000 * frame.beat); }
      else if (question.accepts(frame)) return;
      else if (!isNews(frame)) equalSince(socket.openedAt());
      else if (failed && !question.isPending) begin(); // it answers again
      else want();
    },
    onLost(wasOpen) { question.lose(); if (socket.returns() && !wasOpen) failed = refused = true; want(); },
  });

  function equalSince(at) { if (!tries.isAny) { wanted = false; good(at); tell(); } }
  function good(at) { goodAt = Math.max(goodAt, at); failed = refused = false; notBefore = 0; }

  function tell() {
    isOffline = refused && (isOffline || !socket.isOpen()); // a flapping socket does not count as online
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
    const gap = document.hidden || socket.returns() ? SAFETY_NET_MS : more ? 0 : betweenPullsMs;
    const at = tries.isAny ? nextAt : Math.max(begunAt + gap, notBefore);
    timer = setTimeout(begin, Math.max(0, at - Date.now()));
  }

  function begin() {
    if (isOver) return;
    if (!tries.isAny) wanted = false; // later news is in no pending response
    begunAt = Date.now();
    nextAt = begunAt + TRY_EVERY_MS * (2 + Math.random()) / 3;
    tryToPull(begunAt);
    plan();
  }

  async function tryToPull(startedAt) {
    const ask = (pulled, signal) => { nextAt = begunAt + SOCKET_PATIENCE_MS; return question.ask(pulled, signal); };
    const wire = socket.isHeard() && !question.isPending ? ask : null, ended = await tries.add((signal, answered) => pull(signal, answered, wire));
    if (!ended) return;
    if (ended.failure) missed(ended);
    else { more = ended.value; wanted ||= more; good(startedAt); }
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

  whenBack(() => { wanted = true; socket.wake(); if (Date.now() - begunAt > betweenPullsMs) begin(); else plan(); });
  setInterval(want, SAFETY_NET_MS);
  setInterval(look, LOOK_EVERY_MS);
  socket.connect();
}
