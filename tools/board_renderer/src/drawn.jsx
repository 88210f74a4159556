// State timeline, heatmap and bar chart: Grafana's packages lack them, so these drawings are not Grafana's. Values,
// names, units and colours are.
import React from 'react';
import { getFieldDisplayName } from '@grafana/data';
import { theme } from './fields.js';

const NAMES = 110;
const AXIS = 18;
const CHARACTER = 8.5; // the room for one, as Grafana's state timeline counts it; its colour is Grafana's, too
const TEXT = { fontSize: 11, fill: theme.colors.text.secondary };

function valueField(frame) {
  return frame.fields.find((field) => field.type === 'number');
}

function clock(ms, view) {
  return new Date(ms).toISOString().slice(11, view.to - view.from < 600 ? 19 : 16);
}

function TimeAxis({ view, width, height }) {
  const at = [0, 0.25, 0.5, 0.75, 1];
  return at.map((part) => (
    <text
      key={part}
      {...TEXT}
      x={NAMES + part * (width - NAMES)}
      y={height - 4}
      textAnchor={part === 1 ? 'end' : part === 0 ? 'start' : 'middle'}
    >
      {clock((view.from + part * (view.to - view.from)) * 1000, view)}
    </text>
  ));
}

function Name({ text, y }) {
  return (
    <text {...TEXT} x={NAMES - 6} y={y + 4} textAnchor="end">
      {text}
    </text>
  );
}

/** Each series as a row of spans of one state. */
export function States({ frames, view, marks, width, height }) {
  const body = height - AXIS;
  const row = body / frames.length;
  const x = (ms) => NAMES + ((ms / 1000 - view.from) / (view.to - view.from)) * (width - NAMES);
  return (
    <svg width={width} height={height}>
      {frames.map((frame, at) => {
        const field = valueField(frame);
        const times = frame.fields[0].values;
        const step = times[1] - times[0];
        const spans = [];
        field.values.forEach((value, i) => {
          const last = spans.at(-1);
          if (value === null) {
            return;
          }
          if (last && last.value === value && last.to === times[i]) {
            last.to = times[i] + step;
          } else {
            spans.push({ value, from: times[i], to: times[i] + step });
          }
        });
        return (
          <g key={at}>
            <Name text={getFieldDisplayName(field, frame, frames)} y={at * row + row / 2} />
            {spans.map((span, i) => {
              const shown = field.display(span.value);
              const left = x(span.from);
              const wide = Math.max(Math.min(x(span.to), width) - left, 1);
              const chars = Math.floor(wide / CHARACTER);
              return (
                <g key={i}>
                  <rect x={left} y={at * row + 2} width={wide} height={row - 4} fill={shown.color} />
                  {chars >= 2 && (
                    <text
                      x={left + 4}
                      y={at * row + row / 2 + 4}
                      fontSize={11}
                      fill={theme.colors.getContrastText(shown.color, 3)}
                    >
                      {shown.text.slice(0, chars)}
                    </text>
                  )}
                </g>
              );
            })}
          </g>
        );
      })}
      {marks.map((mark, at) => (
        <line
          key={at}
          x1={x(mark.from)}
          x2={x(mark.from)}
          y1={0}
          y2={body}
          stroke={theme.visualization.getColorByName(mark.colour)}
          strokeDasharray="5 5"
        />
      ))}
      <TimeAxis view={view} width={width} height={height} />
    </svg>
  );
}

/** Each series as a row of cells, the darker the greater. */
export function Heatmap({ frames, view, width, height }) {
  const body = height - AXIS;
  const row = body / frames.length;
  const most = Math.max(...frames.flatMap((frame) => valueField(frame).values.filter((value) => value !== null)), 0);
  return (
    <svg width={width} height={height}>
      {frames.map((frame, at) => {
        const field = valueField(frame);
        const cell = (width - NAMES) / field.values.length;
        return (
          <g key={at}>
            <Name text={getFieldDisplayName(field, frame, frames)} y={at * row + row / 2} />
            {field.values.map(
              (value, i) =>
                value !== null && (
                  <rect
                    key={i}
                    x={NAMES + i * cell}
                    y={at * row}
                    width={cell + 0.5}
                    height={row - 1}
                    fill={`rgba(255, 120, 30, ${Math.sqrt(value / (most || 1))})`}
                  />
                )
            )}
          </g>
        );
      })}
      <TimeAxis view={view} width={width} height={height} />
      <text {...TEXT} x={4} y={height - 4}>
        max {String(valueField(frames[0]).display(most).text)}
        {valueField(frames[0]).display(most).suffix}
      </text>
    </svg>
  );
}

/** The rows of a matrix as stacked bars. */
export function Bars({ frames, width, height }) {
  const [frame] = frames;
  const [names, ...parts] = frame.fields;
  const body = height - AXIS;
  const row = body / frame.length;
  const sums = names.values.map((_, at) => parts.reduce((sum, field) => sum + (Number(field.values[at]) || 0), 0));
  const end = parts[0].config.max ?? (Math.max(...sums) || 1);
  const wide = (value) => (value / end) * (width - NAMES);
  const colours = parts.map((_, at) => theme.visualization.getColorByName(theme.visualization.palette[at]));
  return (
    <svg width={width} height={height}>
      {names.values.map((name, at) => {
        let x = NAMES;
        return (
          <g key={at}>
            <Name text={name} y={at * row + row / 2} />
            {parts.map((field, i) => {
              const value = Number(field.values[at]) || 0;
              const left = x;
              x += wide(value);
              return (
                <rect key={i} x={left} y={at * row + 4} width={wide(value)} height={row - 8} fill={colours[i]} />
              );
            })}
          </g>
        );
      })}
      {parts.map((field, at) => (
        <text key={at} x={NAMES + at * 110} y={height - 4} fontSize={11} fill={colours[at]}>
          ■ {field.name}
        </text>
      ))}
      <text {...TEXT} x={width - 4} y={height - 4} textAnchor="end">
        0 to {parts[0].display(end).text}
        {parts[0].display(end).suffix}
      </text>
    </svg>
  );
}
