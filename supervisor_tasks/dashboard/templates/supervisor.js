// Flower's table has a grey badge for each state that is not Celery's own. A job that failed is red.
new MutationObserver(() => {
  for (const badge of document.querySelectorAll(".tasks-table .badge.text-bg-secondary")) {
    if (badge.textContent === "JOB-FAILED") badge.classList.replace("text-bg-secondary", "text-bg-danger");
  }
}).observe(document.body, { childList: true, subtree: true });
