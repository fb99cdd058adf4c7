// What pages do in the browser besides htmx: countdowns, keys, copying, and a pause while somebody points at a list.
"use strict";
(() => {
  const root = document.documentElement, { popmq } = window;

  // News wait while the mouse is over them, or the keyboard is in them: nothing moves by itself under the pointer.
  document.addEventListener("htmx:beforeRequest", (event) => {
    const live = event.target.closest && event.target.closest("[data-live]");
    if (!live || event.detail.elt !== live) return;
    const used = live.matches(":hover") && matchMedia("(hover: hover)").matches;
    const open = live.querySelector("details[open], dialog[open], :focus-visible") || popmq.isTyping(live);
    live.toggleAttribute("data-waits", Boolean(used || open));
    if (document.hidden || used || open) event.preventDefault();
    popmq.show();
  });
  document.addEventListener("htmx:afterSwap", () => { label(); tick(); });

  // A table that does not fit is a list, and each of its cells has the name of its column.
  function fit() {
    for (const each of document.querySelectorAll(".wide")) {
      each.classList.remove("listed");
      each.classList.toggle("listed", each.scrollWidth > each.clientWidth + 1);
    }
  }
  addEventListener("resize", fit);
  document.addEventListener("toggle", fit, true);
  function label() {
    for (const table of document.querySelectorAll(".wide table")) {
      const names = [...table.querySelectorAll("thead th")].map((each) => each.innerText.trim().replace(/\s+/g, " "));
      table.setAttribute("role", "table");
      for (const row of table.querySelectorAll("tr")) {
        row.setAttribute("role", "row");
        [...row.cells].forEach((cell, index) => {
          cell.setAttribute("role", cell.tagName === "TH" ? "columnheader" : "cell");
          if (cell.tagName === "TD") cell.dataset.label = names[index] || "";
        });
      }
    }
    fit();
  }

  // On a phone the names of pages and tabs are strips: the one that is shown is in sight.
  for (const here of document.querySelectorAll(".side [aria-current], .tabs [aria-current]")) {
    const strip = here.closest("ul, .tabs");
    strip.scrollLeft = here.offsetLeft - strip.offsetLeft - 60;
  }

  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const words = (seconds, inFull) => {
    let rest = Math.round(seconds);
    const parts = [];
    for (const [unit, size] of units) {
      const number = Math.floor(rest / size);
      rest %= size;
      if (number) parts.push(`${number} ${unit}`);
    }
    return parts.slice(0, !inFull && seconds >= 60 && seconds < 3600 ? 1 : 2).join(" ") || "0 s";
  };
  // Moments are told from now on, by the server's clock. Nothing runs on while the server does not answer.
  function tick() {
    const now = popmq.now();
    if (document.body.dataset.state === "dead") return;
    for (const each of document.querySelectorAll("time[data-ms]")) {
      const seconds = Math.round((Number(each.dataset.ms) - now) / 1000);
      const text = seconds === 0 ? "now" : seconds > 0 ? `in ${words(seconds, each.dataset.full !== undefined)}` : `${words(-seconds)} ago`;
      if (each.textContent !== text) each.textContent = text;
    }
    for (const each of document.querySelectorAll("progress[data-until]")) {
      each.value = Math.max(0, (Number(each.dataset.until) - now) / 1000);
    }
  }
  setInterval(tick, 1000);

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) {
      const before = button.textContent;
      try {
        await navigator.clipboard.writeText(button.dataset.copy);
        button.textContent = "copied";
      } catch {
        const field = document.createElement("textarea");
        field.value = button.dataset.copy;
        button.after(field);
        field.select();
        button.textContent = document.execCommand("copy") ? "copied" : "select and copy";
        field.remove();
      }
      setTimeout(() => { button.textContent = before; }, 1200);
    }
    const opener = event.target.closest("[data-open]");
    if (opener) { event.preventDefault(); document.getElementById(opener.dataset.open).showModal(); }
    if (event.target.closest("[data-theme-switch]")) {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("popmq-theme", root.dataset.theme);
      document.dispatchEvent(new Event("popmq:theme"));
    }
    const all = event.target.closest("[data-check-all]");
    if (all) for (const each of all.closest("form").querySelectorAll("input[name=id]")) each.checked = all.checked;
  });

  let first = "";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (first === "g") {
      first = "";
      const link = document.querySelector(`.side a[data-key="${CSS.escape(event.key)}"]`);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    if (event.key === "/") { event.preventDefault(); document.querySelector(".find input").focus(); }
    if (event.key === "?") { event.preventDefault(); document.getElementById("keys").showModal(); }
    if (event.key === "g") { first = "g"; setTimeout(() => { first = ""; }, 1500); }
  });

  // A dangerous form is sent when the name is typed. The server checks it again.
  document.addEventListener("input", (event) => {
    const wanted = event.target.dataset && event.target.dataset.confirm;
    if (wanted !== undefined) event.target.form.querySelector("[data-armed]").disabled = event.target.value.trim() !== wanted;
  });
  function disarm() {
    for (const each of document.querySelectorAll("input[data-confirm]")) each.form.querySelector("[data-armed]").disabled = each.value.trim() !== each.dataset.confirm;
    tick();
  }
  document.addEventListener("popmq:page", () => { label(); disarm(); });
  label();
  disarm();
})();
