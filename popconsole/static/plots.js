// The live plots of a page: uPlot over its activity, which the console samples.
"use strict";
(() => {
  const box = document.getElementById("plots");
  if (!box) return;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const lines = ["ready", "commit", "waiting", "inflight", "dlq"];
  const short = (value) => value == null ? "–" : value >= 1e6 ? `${(value / 1e6).toFixed(1)}M` : value >= 1e4 ? `${Math.round(value / 1e3)}k`
    : value >= 10 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
  const utc = (seconds, inFull) => new Date(seconds * 1000).toISOString().slice(11, inFull ? 19 : 16);
  const day = (seconds) => new Date(seconds * 1000).toISOString().slice(5, 10);
  const plots = new Map();

  const kinds = {
    in: (data) => [["stored", data.in, "ready"]],
    out: (data) => data.out.map((each, index) => [each.name, each.values, lines[index % lines.length]]),
    latency: (data) => [["p50", data.p50, "commit"], ["p99", data.p99, "dlq"]],
    rates: (data) => [["stored", data.in, "ready"], ["done", data.done, "commit"]],
    lag: (data) => [["ready", data.ready, "ready"], ["in flight", data.inflight, "inflight"], ["waiting", data.waiting, "waiting"]],
    age: (data) => [["oldest, s", data.age, "dlq"]],
    delay: (data) => [["mean", data.mean, "commit"], ["99 %", data.slow, "dlq"]],
    backlog: (data) => [["ready", data.ready, "ready"], ["in flight", data.inflight, "inflight"]],
  };

  function draw(place, at, series) {
    const name = place.dataset.plot;
    const known = series.some(([, values]) => values.some((value) => value != null));
    const wait = place.querySelector(".waiting-for-data");
    if (wait) wait.hidden = known && at.length > 1;
    const shape = series.map(([label]) => label).join("\n") + root();
    const data = [at, ...series.map(([, values]) => values)];
    const old = plots.get(name);
    if (old && old.shape === shape) { old.plot.setData(data); newest(old.plot); return; }
    if (old) old.plot.destroy();
    if (!known || at.length < 2) { plots.delete(name); return; }
    const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const plot = new uPlot({
      width: place.clientWidth, height: 140, padding: [8, 24, 0, 0], tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      hooks: { setCursor: [(u) => { if (u.cursor.idx == null) newest(u); }] },
      cursor: { y: false, points: { size: 6 } }, legend: { live: true },
      scales: { y: { range: (u, low, high) => [0, Math.max(high * 1.15, 1)] } },
      axes: [{ ...axis, space: 80, size: 26, grid: { show: false }, values: (u, all, f, s, step) => all.map((value) => step < 86400 ? utc(value, step < 60) : day(value)) }, { ...axis, size: 44, splits: undefined, values: (u, all) => all.map(short) }],
      series: [{ label: "UTC", value: (u, value) => value == null ? "–" : `${at[at.length - 1] - at[0] > 43200 ? `${day(value)} ` : ""}${utc(value, true)}` },
        ...series.map(([label, , hue], index) => ({
          label, stroke: colour(hue), width: 2, spanGaps: false, points: { show: name === "delay", size: 4 },
          fill: series.length === 1 || name === "backlog" && index === 0 ? `${colour(hue)}22` : undefined,
          value: (u, value) => short(value),
        }))],
    }, data, place);
    plots.set(name, { plot, shape });
    newest(plot);
  }
  // While nobody points at a plot, its legend has the newest values.
  function newest(plot) {
    if (plot.cursor.idx == null) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
  }
  const root = () => document.documentElement.dataset.theme || "";

  let last = null, every = Number(box.dataset.every);  // each answer says when to ask again, in seconds
  function all() {
    if (!last) return;
    for (const place of box.querySelectorAll("[data-plot]")) draw(place, last.at, kinds[place.dataset.plot](last));
  }
  async function load() {
    if (document.hidden) return;
    const { popmq } = window;
    try {
      const answer = await fetch(box.dataset.source, { headers: { "hx-request": "true" }, redirect: "manual" });
      const mark = answer.headers.has("x-popmq-console"), text = await answer.text();
      if (mark && answer.status === 401) popmq.end();
      else if (!mark || !answer.ok) popmq.failed("plots", "not up to date", popmq.reason(answer.status, text, mark));
      else { last = JSON.parse(text); every = last.every || every; all(); popmq.came("plots"); }
    } catch { popmq.failed("plots", "not up to date", "the console does not answer."); }
  }
  addEventListener("resize", () => {
    for (const [name, { plot }] of plots) plot.setSize({ width: box.querySelector(`[data-plot="${name}"]`).clientWidth, height: 140 });
  });
  document.addEventListener("popmq:theme", () => { for (const { plot } of plots.values()) plot.destroy(); plots.clear(); all(); });
  async function goOn() {
    await load();
    setTimeout(goOn, every * 1000);
  }
  goOn();
})();
