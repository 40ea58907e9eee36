// Keeps the state of the broker on the front page up to date. One request asks for the sections that have changed;
// while the tab is hidden there is none.
"use strict";

const EVERY = 2000; // milliseconds
const PATIENCE = 10000;

const broker = document.getElementById("broker");
const note = document.getElementById("broker-note");
let planned = 0;

function sections() {
  return broker.querySelectorAll("[data-section]");
}

function replace(section, html) {
  const focused = section.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  section.innerHTML = html;
  if (focused !== null) section.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus();
}

function show(changed) {
  for (const section of sections()) {
    const now = changed[section.dataset.section];
    if (!now) continue;
    section.dataset.version = now.version;
    replace(section, now.html);
  }
}

function say(words) {
  if (note.textContent !== words) note.textContent = words;
}

async function look() {
  const versions = [...sections()].map((section) => [section.dataset.section, section.dataset.version]);
  const known = new URLSearchParams(versions);
  try {
    const answer = await fetch(`${broker.dataset.address}?${known}`, {
      headers: {Accept: "application/json"}, signal: AbortSignal.timeout(PATIENCE),
    });
    if (answer.redirected || answer.status === 403) {
      say("You are logged out, or may not see this any more. Load the page again.");
      return;
    }
    if (answer.ok) show(await answer.json());
    say(answer.ok ? "" : "The site does not answer as it should; these figures are old.");
  } catch (error) {
    if (!(error instanceof TypeError || error.name === "TimeoutError" || error.name === "AbortError")) throw error;
    say("The site does not answer; these figures are old.");
  }
  plan();
}

function plan() {
  window.clearTimeout(planned);
  if (!document.hidden) planned = window.setTimeout(look, EVERY);
}

if (broker) {
  document.addEventListener("visibilitychange", plan);
  plan();
}
