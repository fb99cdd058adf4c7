// Forms are sent by the script, so that a failure leaves the page, and what was typed, where they are.
"use strict";
(() => {
  const { popmq } = window;
  const WAIT_MS = 120000;
  const place = `popmq-typed ${location.pathname}${location.search}`;
  const fieldsOf = (form) => [...form.elements].filter((each) => each.name && !["hidden", "password", "submit", "button", "fieldset"].includes(each.type));
  const forms = (within = document) => [...within.querySelectorAll("form")].filter((each) => each.closest("main"));

  function isChanged(field) {
    if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
    if (field.tagName !== "SELECT") return field.value !== field.defaultValue;
    const first = [...field.options].findIndex((each) => each.defaultSelected);
    return field.selectedIndex !== Math.max(0, first);
  }
  popmq.isTyping = (within) => forms(within).some((form) => fieldsOf(form).some(isChanged));

  // What was typed waits in this tab for the page to come again. Secrets do not.
  popmq.keep = () => {
    const typed = [];
    forms().forEach((form, number) => fieldsOf(form).forEach((field, index) => {
      if (isChanged(field)) typed.push({ number, index, name: field.name, value: field.value, checked: field.checked });
    }));
    if (typed.length) try { sessionStorage.setItem(place, JSON.stringify(typed)); } catch { /* it is full, or forbidden */ }
  };
  function bringBack() {
    let typed;
    try { typed = JSON.parse(sessionStorage.getItem(place)); sessionStorage.removeItem(place); } catch { return; }
    let number = 0;
    for (const each of typed || []) {
      const form = forms()[each.number];
      const field = form && fieldsOf(form)[each.index];
      if (!field || field.name !== each.name) continue;
      if (field.type === "checkbox" || field.type === "radio") field.checked = each.checked; else field.value = each.value;
      const fold = field.closest("details");
      if (fold) fold.open = true;
      field.dispatchEvent(new Event("input", { bubbles: true }));
      number += 1;
    }
    if (number) tell(document.getElementById("alarm"), "What you typed is here again; it was not sent.", "note");
  }

  function tell(where, sentence, kind) {
    for (const each of document.querySelectorAll("[data-told]")) each.remove();
    const box = document.createElement("p");
    box.className = kind;
    box.dataset.told = "";
    box.setAttribute("role", kind === "note" ? "status" : "alert");
    box.textContent = sentence;
    if (where.id === "alarm") where.after(box); else where.append(box);
    box.scrollIntoView({ block: "nearest" });
  }

  // A page that answers a form, such as a preview.
  function show(page) {
    const fresh = new DOMParser().parseFromString(page, "text/html");
    const main = fresh.querySelector("main");
    if (main.querySelector("[data-preview]")) popmq.keep(); // who goes back changes it once more
    history.pushState(null, "", location.href);
    document.title = fresh.title;
    for (const each of document.querySelectorAll("main > :not(#alarm)")) each.remove();
    document.querySelector("main").append(...[...main.childNodes].filter((each) => each.id !== "alarm"));
    document.dispatchEvent(new Event("popmq:page"));
    scrollTo(0, 0);
  }
  addEventListener("popstate", () => location.reload());

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if ((form.getAttribute("method") || "").toLowerCase() !== "post" || event.defaultPrevented) return;
    event.preventDefault();
    if (form.dataset.sends !== undefined) return; // a second click
    form.dataset.sends = "";
    const fields = new URLSearchParams(new FormData(form));
    const button = event.submitter;
    if (button && button.name) fields.append(button.name, button.value);
    if (form.dataset.forgets !== undefined) for (const name of Object.keys(sessionStorage)) if (name.startsWith("popmq-typed ")) sessionStorage.removeItem(name);
    const stop = new AbortController();
    const timer = setTimeout(() => stop.abort(), WAIT_MS);
    const refuse = (sentence) => tell(form, sentence, "bad");
    try {
      // Not the property: a field may be called action.
      const answer = await fetch(form.getAttribute("action") || location.href, { method: "POST", body: fields, headers: { "hx-request": "true" }, redirect: "manual", signal: stop.signal });
      const text = await answer.text(), mark = answer.headers.has("x-popmq-console");
      const facts = mark && (answer.headers.get("content-type") || "").startsWith("application/json") ? JSON.parse(text) : null;
      if (facts && facts.go) { sessionStorage.removeItem(place); location.assign(facts.go); }
      else if (mark && answer.status === 401) popmq.signIn();
      else if (facts && facts.is_old) popmq.again();
      else if (facts) refuse(facts.sentence);
      else if (mark && answer.ok) show(text);
      else refuse(`Not known whether it was done: ${popmq.reason(answer.status, text, mark)} What you typed is still here; look before you send it again.`);
    } catch {
      refuse(`Not known whether it was done: the console ${stop.signal.aborted ? `has not answered within ${WAIT_MS / 1000} s` : "does not answer"}. What you typed is still here; look before you send it again.`);
    } finally {
      clearTimeout(timer);
      delete form.dataset.sends;
    }
  });
  bringBack();
})();
