// Goes on with a search by itself: fetches page after page, and adds what is found to the table, until the page is
// full, all was looked at, or it is stopped. Without this script a link leads from page to page.
"use strict";

const PATIENCE = 30000; // milliseconds
const most = Number(document.currentScript.dataset.most);
const stop = document.createElement("button");
const running = new AbortController();

function rows(page) {
  return [...page.querySelectorAll("#changelist .results tbody tr")].filter((row) => row.querySelector("th"));
}

// Adds the rows of another page, and takes over how far it has looked.
function add(page) {
  const body = document.querySelector("#changelist .results tbody");
  const found = [...rows(document), ...rows(page).map((row) => document.importNode(row, true))];
  if (found.length > 0) body.replaceChildren(...found);
  const actions = page.querySelector("#operate-form .actions");
  if (actions && !document.querySelector("#operate-form .actions")) {
    document.querySelector("#operate-form .results").before(document.importNode(actions, true));
  }
  const progress = document.getElementById("progress");
  progress.replaceChildren(...document.importNode(page.getElementById("progress"), true).childNodes);
  document.getElementById("found").textContent = found.length;
}

function end() {
  stop.remove();
  document.getElementById("progress").removeAttribute("aria-busy");
}

async function goOn() {
  const progress = document.getElementById("progress");
  progress.setAttribute("aria-busy", "true");
  progress.after(stop);
  try {
    while (rows(document).length < most && !running.signal.aborted) {
      const further = document.getElementById("further");
      if (!further) break;
      const signal = AbortSignal.any([running.signal, AbortSignal.timeout(PATIENCE)]);
      const answer = await fetch(further.href, {signal});
      if (!answer.ok || answer.redirected) break;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!page.getElementById("progress")) break;
      add(page);
    }
  } catch (error) {
    // It was stopped, or the site is away: the link leads on.
    if (!(error instanceof TypeError || error.name === "TimeoutError" || error.name === "AbortError")) throw error;
  }
  end();
}

stop.type = "button";
stop.className = "button";
stop.id = "stop-search";
stop.textContent = "Stop looking";
stop.addEventListener("click", () => running.abort());
goOn();
