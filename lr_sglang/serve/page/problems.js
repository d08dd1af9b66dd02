// Problems in words.

/** A problem of `stream.js` for a person: what happened, and what can be done. */
export function inWords(problem, steps) {
  const said = problem.message ? ` It says: “${problem.message}”` : "";
  const kept = steps ? ` The ${steps === 1 ? "step" : `${steps} steps`} that came are kept below.` : "";
  switch (problem.kind) {
    case "unreachable":
      return "The endpoint cannot be reached. Is it still running, and is the network up?";
    case "key":
      return "This API key has letters that no key has. Look at it again under Settings.";
    case "broken":
      return `The stream broke off: ${problem.message}.${kept}`;
    case "failed":
      return `The endpoint gave this answer up: ${problem.message}.${kept}`.replace("..", ".");
  }
  switch (problem.status) {
    case 400:
    case 422:
      return `The endpoint does not take this question.${said}`;
    case 401:
    case 403:
      return "The endpoint asks for an API key, and this is none that it knows. Enter one under Settings.";
    case 404:
      return `There is no such model here.${said}`;
    case 408:
    case 504:
      return `The answer took longer than the endpoint allows.${said}`;
    case 413:
      return "The question is longer than the endpoint takes.";
    case 429:
      return "Too many requests at once: the queue is full.";
    case 503:
      return `The target model is not there: the endpoint cannot answer now.${said}`;
  }
  return `The endpoint failed (status ${problem.status}).${said}`;
}
