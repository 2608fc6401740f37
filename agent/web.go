package agent

import "github.com/evictd/evictd/agent/metrics"

// webOptions are what metrics and health are served with.
func (d *daemon) webOptions() metrics.Options {
	return metrics.Options{
		Handler:    metrics.Mux(d.metrics.Handler(d.log.Logger), &d.reports.beat, slowestTurn, d.checks()...),
		ConfigFile: d.options.WebConfigFile,
		Thread:     ordinaryPriority,
		Log:        d.log.Logger,
	}
}
