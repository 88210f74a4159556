// Queries Prometheus and makes data frames of its answers, as Grafana's data source does.
import { FieldType } from '@grafana/data';

const ANNOTATION_STEP_S = 60;

/** Seconds of a duration such as "15s" or "1m". */
function seconds(text) {
  const [, number, unit] = /^(\d+)(s|m|h)$/.exec(text);
  return Number(number) * { s: 1, m: 60, h: 3600 }[unit];
}

/** Fills Grafana's variables in. `step` is the distance of the evaluations, in seconds. */
function filled(expr, view, step) {
  const names = {
    $__rate_interval: `${Math.max(step + view.scrape, 4 * view.scrape)}s`,
    $__interval: `${step}s`,
    $__range: `${view.to - view.from}s`,
    $cluster: '',
    $namespace: view.namespace,
    $group: view.group,
  };
  return Object.entries(names).reduce((text, [name, value]) => text.replaceAll(name, value), expr);
}

async function ask(path, parameters) {
  const answer = await (await fetch(`/api/v1/${path}?${new URLSearchParams(parameters)}`)).json();
  if (answer.status !== 'success') {
    throw new Error(`${answer.error}: ${parameters.query}`);
  }
  return answer.data.result;
}

function range(expr, view, step) {
  const aligned = (time) => Math.floor(time / step) * step;
  return ask('query_range', {
    query: filled(expr, view, step),
    start: aligned(view.from),
    end: aligned(view.to),
    step,
  });
}

function legend(target, labels) {
  const format = target.legendFormat;
  if (!format || format === '__auto') {
    return undefined;
  }
  return format.replace(/{{\s*(\w+)\s*}}/g, (_, name) => labels[name] ?? name);
}

function number(text) {
  return { NaN: NaN, '+Inf': Infinity, '-Inf': -Infinity }[text] ?? Number(text);
}

/** A frame of one series; where Prometheus has no sample, the value is null, so that a line has a gap. */
function seriesFrame(target, series, view, step) {
  const samples = new Map(series.values.map(([time, value]) => [time, number(value)]));
  const times = [];
  for (let time = Math.floor(view.from / step) * step; time <= view.to; time += step) {
    times.push(time);
  }
  const labels = { ...series.metric };
  delete labels.__name__;
  return {
    refId: target.refId,
    length: times.length,
    fields: [
      { name: 'Time', type: FieldType.time, config: {}, values: times.map((time) => time * 1000) },
      {
        name: 'Value',
        type: FieldType.number,
        labels,
        config: { displayNameFromDS: legend(target, labels) },
        values: times.map((time) => samples.get(time) ?? null),
      },
    ],
  };
}

/** One frame with a column for each label, as of the format "table". */
function tableFrame(target, result, single) {
  const labels = [...new Set(result.flatMap((series) => Object.keys(series.metric)))].filter(
    (name) => name !== '__name__'
  );
  return {
    refId: target.refId,
    length: result.length,
    fields: [
      {
        name: 'Time',
        type: FieldType.time,
        config: {},
        values: result.map((series) => series.value[0] * 1000),
      },
      ...labels.map((name) => ({
        name,
        type: FieldType.string,
        config: {},
        values: result.map((series) => series.metric[name] ?? ''),
      })),
      {
        name: single ? 'Value' : `Value #${target.refId}`,
        type: FieldType.number,
        config: {},
        values: result.map((series) => number(series.value[1])),
      },
    ],
  };
}

/** The frames of a panel that is `width` pixels wide. */
export async function frames(panel, view, width) {
  const step = Math.max(Math.ceil((view.to - view.from) / width), view.scrape);
  const made = await Promise.all(
    (panel.targets ?? []).map(async (target) => {
      if (target.instant) {
        const query = filled(target.expr, view, step);
        const result = await ask('query', { query, time: view.to });
        if (target.format === 'table') {
          return result.length ? [tableFrame(target, result, panel.targets.length === 1)] : [];
        }
        return result.map((series) =>
          seriesFrame(target, { ...series, values: [series.value] }, { from: view.to, to: view.to }, 1)
        );
      }
      return (await range(target.expr, view, step)).map((series) => seriesFrame(target, series, view, step));
    })
  );
  return made.flat();
}

/** The annotations of a board: {name, colour, title, from, to}, in ms; what lasts over several steps is an area. */
export async function annotations(board, view) {
  const marks = board.annotations?.list ?? [];
  const made = await Promise.all(
    marks.map(async (mark) => {
      const wanted = mark.step ? seconds(mark.step) : ANNOTATION_STEP_S;
      const step = Math.max(Math.min(wanted, view.annotationStep ?? wanted), 1);
      return (await range(mark.expr, view, step)).flatMap((series) => {
        const spans = [];
        for (const [time, value] of series.values) {
          if (!(number(value) > 0)) {
            continue;
          }
          const last = spans.at(-1);
          if (last && last.to + step * 1000 >= time * 1000) {
            last.to = time * 1000;
          } else {
            const title = legend({ legendFormat: mark.titleFormat }, series.metric);
            spans.push({
              name: mark.name,
              colour: mark.iconColor,
              title,
              from: time * 1000,
              to: time * 1000,
            });
          }
        }
        return spans;
      });
    })
  );
  return made.flat();
}
