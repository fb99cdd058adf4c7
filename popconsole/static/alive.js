// Whether what the page shows is true: it asks the server every few seconds, and says since when there is no answer.
"use strict";
(() => {
  const EVERY_MS = 3000, LIMIT_MS = 8000, SLOW_MS = 4000;
  const { body } = document;
  const dot = document.querySelector(".live-dot"), said = document.querySelector("[data-live-said]");
  const alarm = document.getElementById("alarm");
  const skew = Number(body.dataset.now || Date.now()) - Date.now();
  const now = () => Date.now() + skew; // the server's time
  const clock = (moment) => `${new Date(moment).toISOString().slice(11, 19)} UTC`;
  const wrong = new Map(); // what does not come, by its name: since when, and why
  const good = new Map(); // when it last came
  const began = now();
  let asked = null; // the question that has no answer yet, and since when
  let ended = false, woke = false;

  function came(name) {
    good.set(name, now());
    wrong.delete(name);
    woke = false;
    show();
  }
  function failed(name, what, why) {
    wrong.set(name, { what, why, since: (wrong.get(name) || {}).since || good.get(name) || began });
    show();
  }

  let shown = "";
  function show() {
    const first = ["alive", ...wrong.keys()].map((name) => wrong.get(name)).find(Boolean);
    const waits = asked && now() - asked.at > SLOW_MS;
    body.dataset.state = first || ended ? "dead" : waits || woke ? "asking" : "live";
    let words = "live", why = "";
    if (ended) [words, why] = ["session ended", "Your session has ended. What you typed is kept."];
    else if (first) {
      words = `${first.what} since ${clock(first.since)}`;
      why = `${words[0].toUpperCase()}${words.slice(1)}: ${first.why} What this page shows is of that time.`;
    } else if (waits || woke) words = `no answer since ${clock(good.get("alive") || began)}, waiting`;
    else if (document.querySelector("[data-live][data-waits]")) words = "waits while you point at it";
    if (said && said.textContent !== words) said.textContent = words;
    if (dot) dot.title = words;
    const another = !why && body.dataset.another ? "The console is of another version now than this page." : "";
    if (alarm && why + another !== shown) {
      shown = why + another;
      alarm.replaceChildren();
      if (!shown) return;
      const box = document.createElement("p");
      box.className = why ? "bad" : "warn";
      box.append(`${shown} `);
      const link = document.createElement("a");
      link.href = ended ? body.dataset.signIn : location.href;
      link.textContent = ended ? "Sign in again" : "Load the page again";
      link.addEventListener("click", (event) => { event.preventDefault(); (ended ? signIn : again)(); });
      box.append(link);
      alarm.append(box);
    }
  }

  function again() {
    if (window.popmq.keep) window.popmq.keep();
    location.reload();
  }
  function signIn() {
    if (window.popmq.keep) window.popmq.keep();
    location.assign(`${body.dataset.signIn}?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  // Nobody is sent away in the middle of a sentence.
  function end() {
    if (!window.popmq.isTyping || !window.popmq.isTyping()) { signIn(); return; }
    ended = true;
    show();
  }

  // What an answer says that is no good one.
  function reason(status, text, mark) {
    try { if (mark) return JSON.parse(text).sentence || text; } catch { /* it is no answer of the console */ }
    if (status === 0) return "there was no answer.";
    return `HTTP ${status} came, which is no answer of the console; look at the proxy before it.`;
  }

  async function ask() {
    if (asked) return;
    const mine = asked = { at: now(), stop: new AbortController() };
    const timer = setTimeout(() => mine.stop.abort(), LIMIT_MS);
    try {
      const answer = await fetch(body.dataset.alive, { headers: { "hx-request": "true" }, cache: "no-store", redirect: "manual", signal: mine.stop.signal });
      const text = await answer.text(), mark = answer.headers.has("x-popmq-console");
      if (mine !== asked) return;
      asked = null;
      if (mark && answer.status === 401) end();
      else if (!mark || !answer.ok) failed("alive", "no answer", reason(answer.status, text, mark));
      else {
        const health = JSON.parse(text);
        if (health.build !== body.dataset.build) body.dataset.another = "yes";
        if (ended) { ended = false; }
        if (!health.is_ready) failed("alive", "not ready", health.sentence);
        else if (body.dataset.comesAgain !== undefined) location.reload();
        else came("alive");
      }
    } catch {
      if (mine !== asked) return;
      asked = null;
      failed("alive", "no answer", mine.stop.signal.aborted ? `the console has not answered within ${LIMIT_MS / 1000} s.` : "the console does not answer.");
    } finally { clearTimeout(timer); }
  }
  // A machine that slept, a page that was hidden: what is shown may be old, so it is asked before it is believed.
  function wake() {
    if (document.hidden) return;
    if (now() - (good.get("alive") || began) > 2 * EVERY_MS) woke = true;
    if (asked) asked.stop.abort();
    asked = null;
    show();
    ask();
  }
  let beat = Date.now();
  setInterval(() => {
    const slept = Date.now() - beat > 5000;
    beat = Date.now();
    if (slept) wake(); else show();
  }, 1000);
  setInterval(() => { if (!document.hidden) ask(); }, EVERY_MS);
  document.addEventListener("visibilitychange", wake);
  addEventListener("pageshow", (event) => { if (event.persisted) wake(); });
  addEventListener("online", wake);
  addEventListener("offline", () => ask());

  // The parts that htmx asks for.
  const nameOf = (event) => `part ${event.detail.elt.id || event.detail.elt.tagName}`;
  if (window.htmx) window.htmx.config.timeout = 15000;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr } = event.detail;
    if (xhr.status < 300 && !xhr.getResponseHeader("x-popmq-console")) {
      event.detail.shouldSwap = false;
      failed(nameOf(event), "not up to date", reason(xhr.status, "", false));
    } else if (xhr.status < 300) came(nameOf(event));
  });
  document.addEventListener("htmx:responseError", (event) => {
    const { xhr } = event.detail;
    const mark = xhr.getResponseHeader("x-popmq-console");
    if (xhr.status === 401 && mark) end();
    else failed(nameOf(event), "not up to date", reason(xhr.status, xhr.responseText, mark));
  });
  for (const kind of ["htmx:sendError", "htmx:timeout"]) document.addEventListener(kind, (event) => {
    failed(nameOf(event), "not up to date", "the console does not answer.");
    ask();
  });

  window.popmq = { now, clock, came, failed, end, signIn, again, reason, show };
  show();
  if (body.dataset.comesAgain !== undefined) ask();
})();
