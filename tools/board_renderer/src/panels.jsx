// The body of a panel. Stat, time series, bar gauge and table are Grafana's own components; state timeline,
// heatmap and bar chart are not in its packages and are drawn by `drawn.jsx`.
import React, { useLayoutEffect } from 'react';
import { dateTime, getFieldDisplayValues } from '@grafana/data';
import { BarGauge, BigValue, Table, TimeSeries } from '@grafana/ui';
import { Bars, Heatmap, States } from './drawn.jsx';
import { fieldConfig, replaceVariables, theme } from './fields.js';

/** Draws the annotations on a time series, as Grafana's plugin of that name does. */
function Annotations({ config, marks }) {
  useLayoutEffect(() => {
    config.addHook('draw', (u) => {
      const { left, top, width, height } = u.bbox;
      u.ctx.save();
      u.ctx.beginPath();
      u.ctx.rect(left, top, width, height);
      u.ctx.clip();
      for (const mark of marks) {
        const colour = theme.visualization.getColorByName(mark.colour);
        const from = Math.round(u.valToPos(mark.from, 'x', true));
        const to = Math.round(u.valToPos(mark.to, 'x', true));
        u.ctx.strokeStyle = u.ctx.fillStyle = colour;
        u.ctx.setLineDash([5, 5]);
        for (const x of new Set([from, to])) {
          u.ctx.beginPath();
          u.ctx.moveTo(x, top);
          u.ctx.lineTo(x, top + height);
          u.ctx.stroke();
        }
        u.ctx.globalAlpha = 0.1;
        u.ctx.fillRect(from, top, to - from, height);
        u.ctx.globalAlpha = 1;
        u.ctx.fillRect(from - 3, top + height - 4, Math.max(to - from, 6), 4);
      }
      u.ctx.restore();
    });
  }, [config, marks]);
  return null;
}

function Tiles({ panel, frames, view, width, height }) {
  const values = displays(panel, frames, view);
  const options = panel.options ?? {};
  return (
    <div style={{ display: 'flex', width, height }}>
      {values.map((value, at) => (
        <BigValue
          key={at}
          width={width / values.length}
          height={height}
          theme={theme}
          colorMode={options.colorMode ?? 'value'}
          graphMode={options.graphMode ?? 'area'}
          justifyMode="auto"
          textMode={options.textMode ?? 'auto'}
          value={value.display}
          count={values.length}
          sparkline={value.sparkline}
        />
      ))}
    </div>
  );
}

function displays(panel, frames, view) {
  return getFieldDisplayValues({
    fieldConfig: fieldConfig(panel),
    reduceOptions: { calcs: panel.options?.reduceOptions?.calcs ?? ['lastNotNull'], values: false },
    replaceVariables: replaceVariables(view),
    theme,
    data: frames,
    sparkline: panel.options?.graphMode === 'area',
    timeZone: 'utc',
  });
}

function Gauges({ panel, frames, view, width, height }) {
  const values = displays(panel, frames, view);
  const each = Math.max(16, Math.min(40, height / values.length - 6));
  return (
    <div style={{ display: 'flex', flexDirection: 'column', gap: 6 }}>
      {values.map((value, at) => (
        <BarGauge
          key={at}
          width={width}
          height={each}
          theme={theme}
          orientation="horizontal"
          displayMode={panel.options?.displayMode ?? 'basic'}
          field={value.field}
          value={value.display}
          display={value.view?.getFieldDisplayProcessor(value.colIndex)}
        />
      ))}
    </div>
  );
}

function Lines({ panel, frames, view, marks, width, height }) {
  const legend = panel.options?.legend ?? {};
  const range = { from: dateTime(view.from * 1000), to: dateTime(view.to * 1000), raw: { from: '', to: '' } };
  return (
    <TimeSeries
      width={width}
      height={height}
      frames={frames}
      timeRange={range}
      timeZone="utc"
      theme={theme}
      legend={{
        displayMode: legend.displayMode ?? 'list',
        placement: legend.placement ?? 'bottom',
        showLegend: legend.showLegend ?? true,
        calcs: legend.calcs ?? [],
      }}
      options={{}}
    >
      {(config) => <Annotations config={config} marks={marks} />}
    </TimeSeries>
  );
}

function Rows({ panel, frames, width, height }) {
  return (
    <Table
      data={frames[0]}
      width={width}
      height={height}
      cellHeight={panel.options?.cellHeight ?? 'sm'}
      initialSortBy={panel.options?.sortBy ?? []}
    />
  );
}

const KINDS = {
  stat: Tiles,
  timeseries: Lines,
  bargauge: Gauges,
  table: Rows,
  'state-timeline': States,
  heatmap: Heatmap,
  barchart: Bars,
};

/** What is inside a panel's frame. */
export function Body(props) {
  const Kind = KINDS[props.panel.type];
  const empty = props.frames.every((frame) => frame.length === 0);
  if (empty && props.panel.type !== 'stat') {
    const text = props.panel.fieldConfig?.defaults?.noValue ?? 'No data'; // as Grafana's PanelDataErrorView
    return <div style={{ padding: 16, color: theme.colors.text.secondary }}>{text}</div>;
  }
  return <Kind {...props} />;
}
