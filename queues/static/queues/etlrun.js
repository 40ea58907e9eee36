// Keeps the progress on a run's page up to date, and loads the page again when the run has ended: its charts are there
// then.
"use strict";

const EVERY = 1000; // milliseconds

function follow(place) {
  if (place.dataset.finished === "yes") return;
  const again = () => window.setTimeout(() => look(place, again), EVERY);
  again();
}

async function look(place, again) {
  try {
    const answer = await fetch(place.dataset.address, {headers: {Accept: "application/json"}});
    if (answer.ok) {
      const run = await answer.json();
      if (run.finished) {
        window.location.reload();
        return;
      }
      const open = place.querySelector("details")?.open ?? false;
      place.innerHTML = run.html;
      place.querySelector("details")?.toggleAttribute("open", open);
    }
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // the site is away for a moment: fetch throws a TypeError
  }
  again();
}

const place = document.getElementById("etl-progress");
if (place) follow(place);
