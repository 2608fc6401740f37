package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/evictd/evictd/agent/control"
	"github.com/evictd/evictd/agent/evict"
	"github.com/evictd/evictd/agent/signal"
)

func newStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the status of the running evictd",
		Long: `Show the status of the running evictd: its mode and the reason, the runtime, node
conditions, each signal with its thresholds, victims in progress and the last
evictions, the newest at the bottom. Times are in UTC.

A threshold with "for" is soft. One with * is derived from another signal's. JSON
has more details; its numbers are in bytes, inodes, PIDs or seconds, and null if
unknown.

If evictd is not ready, for example before it has listed the node's pods, the
command prints the status and exits with 1.`,
		Args: cobra.NoArgs,
		Example: `  evictctl status

  # How much memory is available, in bytes?
  evictctl status -o json | jq '.signals[] | select(.signal == "memory.available").available'`,
	}
	format := addOutputFlag(cmd)
	socket := addSocketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := control.NewClient(*socket).Status(cmd.Context())
		if err != nil {
			return withRemedy(err)
		}
		if *format == outputJSON {
			err = printJSON(cmd.OutOrStdout(), s)
		} else {
			err = statusPage(&s).print(cmd.OutOrStdout())
		}
		if err == nil && !s.Ready {
			err = errors.New("evictd is not ready: " + strings.Join(s.Missing, "; "))
		}
		return err
	}
	return cmd
}

func statusPage(s *control.Status) *page {
	p := &page{}
	p.line("evictd %s on %s, process %d, up %s", s.Version, s.Node.Name, s.PID, between(s.Started, s.At))
	p.line("ready:       %s", readiness(s))
	p.line("mode:        %s", mode(s.Mode))
	p.line("runtime:     %s", runtimeLine(s.Runtime, s.At))
	if s.Kubernetes != nil {
		p.line("kubernetes:  %s", kubernetesLine(s.Kubernetes))
		p.line("reports:     %s", reportsLine(s.Kubernetes))
		p.line("node object: %s", nodeObjectLine(s.Kubernetes.NodeObject, s.At))
		if s.Kubernetes.AffinityAdmission != nil {
			p.line("affinity:    %s", affinityLine(s.Kubernetes.AffinityAdmission))
		}
		p.line("kubelet:     %s", kubeletLine(&s.Kubernetes.Kubelet))
	}
	if s.SelfFencing != nil {
		p.line("watchdog:    %s", watchdogLine(s.SelfFencing))
	}
	p.line("config:      %s", configLine(s.Config))
	p.line("cgroups:     %s at %s, processes at %s", s.Node.CgroupVersion, s.Node.CgroupFS, s.Node.ProcFS)
	p.line("pods:        %d, %d eligible for eviction", s.Pods.Count, s.Pods.Eligible)
	p.line("conditions:  %s", conditions(s.Conditions))
	p.line("shutdown:    %s", shutdownLine(&s.Shutdown))
	p.line("layout:      %s", layouts[s.Layout])
	for _, v := range s.DryRunVictims {
		p.line("dry run:     %s would have been evicted for %s and counts as gone", v.Pod, v.Cause)
	}
	for _, f := range s.Futile {
		p.line("futile:      %s lacks %s, all eligible pods would free %s; next victim after %s",
			f.Signal, control.Amount(f.Signal, f.Deficit), control.Amount(f.Signal, f.Coverage), at(f.Until))
	}
	if s.Config.LastReloadError != "" {
		p.line("warning:     the last reload failed; the previous configuration is in force: %s", strings.ReplaceAll(s.Config.LastReloadError, "\n", "; "))
	}
	if len(s.Config.NeedsRestart) > 0 {
		p.line("warning:     %s", needsRestart(&s.Config))
	}
	for _, w := range s.Warnings {
		p.line("warning:     %s", w)
	}
	if s.Kubernetes != nil {
		for _, r := range s.Kubernetes.Refused {
			p.line("warning:     facts about %s are refused: %s", r.Pod, r.Why)
		}
	}
	p.table([]string{"SIGNAL", "AVAILABLE", "THRESHOLD", "STATE"}, signalRows(s.Signals, s.At))
	p.table(filesystemHeads, filesystemRows(s.Filesystems))
	p.table(laneHeads, laneRows(s.Lanes))
	p.table([]string{"CAUSE", "STATUS", "FOR", "EXPECTED", "LEFT", "VICTIM"}, victimRows(s.Victims, s.At))
	p.table(orderHeads, orderRows(s.Kubernetes, s.At))
	p.table([]string{"EVICTED", "POD", "OUTCOME"}, recordRows(s.Records))
	p.table([]string{"RECLAIMED", "KIND", "FOR", "OUTCOME"}, reclaimRows(s.Reclaims))
	return p
}

func readiness(s *control.Status) string {
	if s.Ready {
		return "yes"
	}
	return "no; " + strings.Join(s.Missing, "; ")
}

func mode(m control.Mode) string {
	switch {
	case m.Reporting:
		return "enforce; evictions of the kubelet's pods are reported to the API server"
	case !m.DryRun:
		return "enforce"
	}
	return strings.Join(append([]string{"dry run, nothing is evicted"}, m.Why...), "; ")
}

func runtimeLine(r control.Runtime, now time.Time) string {
	if r.DeclaredAbsent {
		return "declared absent"
	}
	text := strings.TrimSpace(r.Name + " " + r.Version)
	if text == "" {
		text = "unknown"
	}
	if r.Endpoint != "" {
		text += " at " + r.Endpoint
	}
	if r.Connected {
		text += ", connected"
	} else {
		text += ", not connected"
	}
	if !r.LastSync.IsZero() {
		text += ", pods listed " + between(r.LastSync, now) + " ago"
	}
	if r.Error != "" {
		text += ": " + r.Error
	}
	return text
}

func configLine(c control.Config) string {
	text := "the defaults"
	if len(c.Files) > 0 {
		text = strings.Join(c.Files, ", ")
	}
	if c.LoadedAt.IsZero() {
		return text
	}
	return text + ", loaded " + at(c.LoadedAt)
}

func conditions(cs []signal.Condition) string {
	if len(cs) == 0 {
		return "none"
	}
	names := make([]string, len(cs))
	for i, c := range cs {
		names[i] = string(c)
	}
	return strings.Join(names, ", ")
}

// signalRows returns one row for each threshold, and one for each observed signal
// without a threshold.
func signalRows(signals []control.SignalStatus, now time.Time) [][]string {
	var rows [][]string
	for _, s := range signals {
		if s.Status == control.NotObserved && len(s.Thresholds) == 0 {
			continue
		}
		cells := []string{s.Signal.String(), outOf(s.Signal, s.Available, s.Capacity)}
		if len(s.Thresholds) == 0 {
			rows = append(rows, append(cells, "-", unmet(&s)))
		}
		for _, t := range s.Thresholds {
			state := thresholdState(&s, &t, now)
			if t.Kubelet != "" {
				state += "; left to the kubelet, with its " + t.Kubelet
			}
			rows = append(rows, append(cells, thresholdText(s.Signal, &t)+suffix(&t), state))
			cells = []string{"", ""}
		}
	}
	return rows
}

// outOf returns "AMOUNT of CAPACITY", and "-" if the amount is unknown.
func outOf(s signal.Signal, n, capacity *int64) string {
	if n == nil {
		return "-"
	}
	return amount(s, n) + " of " + amount(s, capacity)
}

// suffix returns the grace period of a soft threshold, and " *" for a derived one.
func suffix(t *control.ThresholdStatus) (text string) {
	if t.Soft {
		text = " for " + seconds(t.GraceSeconds)
	}
	if t.Derived {
		text += " *"
	}
	return text
}

// amount formats n, and returns "-" if it is unknown.
func amount(s signal.Signal, n *int64) string {
	if n == nil {
		return "-"
	}
	return control.Amount(s, *n)
}

func thresholdText(s signal.Signal, t *control.ThresholdStatus) string {
	if t.Quantity == nil || !strings.Contains(t.Value, "%") {
		return t.Value
	}
	return t.Value + " = " + control.Amount(s, *t.Quantity)
}

func kind(t *control.ThresholdStatus) string {
	text := "hard"
	if t.Soft {
		text = "soft, " + seconds(t.GraceSeconds)
	}
	if t.Derived {
		text += ", derived"
	}
	return text
}

// thresholdState returns whether a threshold is met, and for how long.
func thresholdState(s *control.SignalStatus, t *control.ThresholdStatus, now time.Time) string {
	switch {
	case !t.Met && s.DryRunAdds > 0 && s.Available != nil && t.Quantity != nil && *s.Available < *t.Quantity:
		return "met, but dry-run victims add " + control.Amount(s.Signal, s.DryRunAdds)
	case !t.Met:
		return unmet(s)
	case t.Waiting:
		return "met for " + between(t.Since, now) + ", waiting: caused by file cache"
	case t.Kubelet != "":
		return "met for " + between(t.Since, now) + ", left to the kubelet"
	case !t.Past:
		return "met for " + between(t.Since, now) + ", within its grace period"
	case t.Soft:
		return "met for " + between(t.Since, now) + ", past its grace period"
	}
	return "met for " + between(t.Since, now)
}

// oldReading is the age, in seconds, from which the age of a reading is shown:
// three times the longest interval between two readings.
const oldReading = 30

func unmet(s *control.SignalStatus) string {
	switch s.Status {
	case control.Observed:
		if s.AgeSeconds != nil && *s.AgeSeconds >= oldReading {
			return "ok, read " + seconds(*s.AgeSeconds) + " ago"
		}
		return "ok"
	case control.Unreadable:
		return "unreadable: " + s.Error
	}
	return string(s.Status)
}

// layouts describes the layouts of filesystems.
var layouts = map[string]string{
	"":        "unknown",
	"single":  "one filesystem for the node, images and containers",
	"imagefs": "images and containers on a filesystem of their own",
	"split":   "images on a filesystem of their own",
}

var filesystemHeads = []string{"FILESYSTEM", "FREE", "INODES FREE", "ON", "STATE"}

func filesystemRows(all []control.Filesystem) [][]string {
	var rows [][]string
	for _, f := range all {
		state := "ok"
		switch {
		case f.Error != "":
			state = f.Error
		case f.ReadOnly:
			state = "read-only"
		case f.AgeSeconds != nil && *f.AgeSeconds >= oldReading:
			state = "ok, read " + seconds(*f.AgeSeconds) + " ago"
		}
		rows = append(rows, []string{
			f.Name, outOf(signal.NodeFsAvailable, f.AvailableBytes, f.SizeBytes),
			outOf(signal.NodeFsInodesFree, f.InodesFree, f.Inodes), orDash(strings.TrimSpace(f.Mountpoint + " " + f.Type)), state,
		})
	}
	return rows
}

var laneHeads = []string{"LANE", "STATE", "PERIOD", "RAISED", "MISSED", "REOPENED", "WHY"}

func laneRows(lanes []control.Lane) [][]string {
	var rows [][]string
	for _, l := range lanes {
		period := "-"
		if l.PeriodSeconds != nil {
			period = seconds(*l.PeriodSeconds)
		}
		rows = append(rows, []string{
			l.Name, l.State, period, count(l.Raised), count(l.Missed), count(l.Reopened), orDash(l.Why),
		})
	}
	return rows
}

func count(n uint64) string { return strconv.FormatUint(n, 10) }

func victimRows(victims []evict.Victim, now time.Time) [][]string {
	var rows [][]string
	for _, v := range victims {
		rows = append(rows, []string{v.Cause, string(v.Status), between(v.Decided, now), control.Bytes(v.Expected), control.Bytes(v.Lowest), v.Pod})
	}
	return rows
}

func reclaimRows(reclaims []control.Reclaim) [][]string {
	var rows [][]string
	for _, r := range reclaims {
		freed := control.Amount(r.Signal, r.Freed)
		if r.Deficit > 0 {
			freed += " of " + control.Amount(r.Signal, r.Deficit)
		}
		removed, names := len(r.Removed)+r.RemovedMore, strings.Join(r.Removed, ", ")
		if r.RemovedMore > 0 {
			names += fmt.Sprintf(" and %d more", r.RemovedMore)
		}
		outcome := fmt.Sprintf("%s: %d removed, %s freed in %s", r.Reason, removed, freed, seconds(r.TookSeconds))
		if r.DryRun {
			outcome = fmt.Sprintf("%s, dry run: %d would be removed", r.Reason, removed)
		}
		for _, more := range []string{names, r.Note, r.Error} {
			if more != "" {
				outcome += "; " + more
			}
		}
		rows = append(rows, []string{at(r.At), string(r.Kind), r.Signal.String(), outcome})
	}
	return rows
}

func recordRows(records []evict.Record) [][]string {
	var rows [][]string
	for _, r := range records {
		rows = append(rows, []string{at(r.Decided), r.Pod, outcome(&r)})
	}
	return rows
}

// outcome describes the result of an eviction.
func outcome(r *evict.Record) string {
	text := r.Cause + ", soft: " + r.Result
	if r.Hard {
		text = r.Cause + ", hard: " + r.Result
	}
	if r.Futile {
		text += ", futile"
	}
	if !r.CrossingSeen.IsZero() && !r.SignalSent.IsZero() {
		text += " in " + between(r.CrossingSeen, r.SignalSent)
	}
	if !r.LastGone.IsZero() {
		text += ", gone after " + between(r.SignalSent, r.LastGone)
		if s, ok := signal.Parse(r.Cause); ok {
			text += ", " + control.Amount(s, r.Freed) + " freed"
		}
	}
	if r.ReportAnswer != "" {
		text += ", API server: " + r.ReportAnswer
		if !r.Reported.IsZero() && !r.SignalSent.IsZero() {
			text += " after " + between(r.SignalSent, r.Reported)
		}
	}
	if r.Error != "" {
		text += ": " + r.Error
	}
	return text
}

// signalState returns the available amount and capacity of a signal, or why they are
// unknown.
func signalState(s *control.SignalStatus) string {
	if s.Status != control.Observed {
		return unmet(s)
	}
	return fmt.Sprintf("%s of %s available", amount(s.Signal, s.Available), amount(s.Signal, s.Capacity))
}
