package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/evictd/evictd/tests/vm/image"
	"github.com/evictd/evictd/tests/vm/machine"
	"github.com/evictd/evictd/tests/vm/protocol"
)

// errFailed means that a command failed or did not run. The printed table has the details.
var errFailed = errors.New("not all commands passed")

// runner boots machines and runs suites in them.
type runner struct {
	options
	out   *printer
	cache *image.Cache
	// scratch is a directory that is removed after the run; guest is the path of the program in the initrd of each
	// machine.
	scratch, guest, root string
	qemu                 image.QEMU
	payload              *payload
}

// prepare builds or finds in the cache what all machines need. done removes the scratch directory.
func (b *runner) prepare(ctx context.Context) (done func() error, err error) {
	if err := image.CheckTools(); err != nil {
		return nil, err
	}
	if _, err := os.Stat("tests/vm/guest"); err != nil {
		return nil, fmt.Errorf("the working directory must be the module's root: %w", err)
	}
	dir, err := image.CacheDir()
	if err != nil {
		return nil, err
	}
	if b.cache, err = image.OpenCache(dir, b.out); err != nil {
		return nil, err
	}
	if b.qemu, err = b.cache.QEMU(ctx); err != nil {
		return nil, err
	}
	if b.root, err = b.cache.Root(ctx); err != nil {
		return nil, err
	}
	for _, series := range b.kernels {
		if _, err := b.cache.Kernel(ctx, series); err != nil {
			return nil, err
		}
	}
	b.scratch, done, err = b.cache.Scratch()
	if err != nil {
		return nil, err
	}
	b.guest = filepath.Join(b.scratch, "guest")
	if _, err := goOutput(ctx, "build", "-trimpath", "-ldflags=-s -w", "-o", b.guest, "./tests/vm/guest"); err != nil {
		return nil, errors.Join(fmt.Errorf("build the guest's runner: %w", err), done())
	}
	return done, nil
}

// test runs the suites of the options and prints a table. The error is errFailed if a command failed or did not run.
func (b *runner) test(ctx context.Context) (err error) {
	start := time.Now()
	done, err := b.prepare(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	selected, tested := b.selectedSuites(), commit(ctx)
	if b.payload, err = buildPayload(ctx, filepath.Join(b.scratch, "payload"), selected); err != nil {
		return err
	}
	variants := b.variants()
	if len(variants) == 0 {
		return fmt.Errorf("profile %s has no machine of %s", b.profile, strings.Join(b.machines, ", "))
	}
	b.out.say("", "%d machines, at most %d at once; ready to boot after %v", len(variants), b.parallel, time.Since(start).Round(time.Second))
	records := make([]record, len(variants))
	saveErrs := make([]error, len(variants))
	var saving sync.Mutex
	var machines sync.WaitGroup
	slots := make(chan struct{}, b.parallel)
	for i, v := range variants {
		slots <- struct{}{}
		if ctx.Err() != nil {
			break
		}
		machines.Go(func() {
			defer func() { <-slots }()
			records[i] = b.boot(ctx, v, selected)
			// Saved after each machine, because a run of the whole matrix may be interrupted. Single tests (-run)
			// are not the result of a suite.
			if b.profile == profileFull && b.run == "" && ctx.Err() == nil {
				saving.Lock()
				defer saving.Unlock()
				saveErrs[i] = records[i].save(resultsDir, time.Now(), tested, b.classes == nil && b.packages == nil)
			}
		})
	}
	machines.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t := newTable(records)
	t.print(b.out)
	b.out.say("", "finished after %v; logs are in %s", time.Since(start).Round(time.Second), b.options.out)
	if err := errors.Join(saveErrs...); err != nil {
		return err
	}
	if !t.passed() {
		return errFailed
	}
	return nil
}

// selectedSuites returns the suites to run.
func (b *runner) selectedSuites() []suite {
	var selected []suite
	for _, s := range suites {
		if slices.Contains(b.suites, s.name) || b.suites == nil && slices.Contains(s.profiles, b.profile) {
			selected = append(selected, s)
		}
	}
	return selected
}

// variants returns the machines to boot: of the profile, or those of them in the options. The smoke profile has one
// machine, with the last kernel.
func (b *runner) variants() []variant {
	var all []variant
	switch b.profile {
	case profileFull:
		all = matrix(b.kernels)
	case profileSmoke:
		all = plain(b.kernels[len(b.kernels)-1:], b.driver)
	default:
		all = plain(b.kernels, b.driver)
	}
	return slices.DeleteFunc(all, func(v variant) bool { return b.machines != nil && !slices.Contains(b.machines, v.name) })
}

// record is the result of one machine.
type record struct {
	variant variant
	report  machine.Report
	// planned are the commands in order, with the suite of each; omitted are those for which the budget had no room.
	planned []planned
	omitted []string
	// err is the reason why the machine was not booted, or the error of its run.
	err error
}

// planned is a command with its suite.
type planned struct {
	suite   string
	goTest  bool
	command protocol.Command
}

// boot runs one machine.
func (b *runner) boot(ctx context.Context, v variant, suites []suite) record {
	r := record{variant: v}
	r.planned, r.omitted = b.plan(v, suites)
	r.report, r.err = b.runMachine(ctx, v, r.planned)
	if r.err != nil {
		b.sayError(v, r.err)
	}
	return r
}

// sayError prints the error with which a machine ended, and the end of its console.
func (b *runner) sayError(v variant, err error) {
	b.out.say(v.name, "%v", err)
	var lost *machine.Error
	if errors.As(err, &lost) {
		for line := range strings.Lines(lost.Detail()) {
			b.out.say(v.name, "%s", strings.TrimRight(line, "\n"))
		}
	}
}

// logs creates an empty directory for a machine's logs.
func (b *runner) logs(v variant) (string, error) {
	dir := filepath.Join(b.options.out, v.name)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

func (b *runner) runMachine(ctx context.Context, v variant, commands []planned) (machine.Report, error) {
	logs, err := b.logs(v)
	if err != nil {
		return machine.Report{}, err
	}
	plan := protocol.Plan{Writes: v.writes, Hide: v.hide}
	for _, p := range commands {
		plan.Commands = append(plan.Commands, p.command)
	}
	c, err := b.config(ctx, v, &plan)
	if err != nil {
		return machine.Report{}, err
	}
	c.Dir, c.Budget = logs, plan.Budget()
	report, err := machine.Run(ctx, c, func(e protocol.Event) { b.printEvent(v, e) })
	for _, result := range report.Results {
		file := filepath.Join(logs, strings.ReplaceAll(result.Command, "/", "-")+".log")
		err = errors.Join(err, os.WriteFile(file, []byte(strings.Join(result.Output, "\n")+"\n"), 0o644))
	}
	return report, err
}

// config creates the initrd and the payload disk of a machine. Without a plan the machine boots to a shell.
func (b *runner) config(ctx context.Context, v variant, plan *protocol.Plan) (machine.Config, error) {
	kernel, err := b.cache.Kernel(ctx, v.kernel)
	if err != nil {
		return machine.Config{}, err
	}
	dir := filepath.Join(b.scratch, v.name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return machine.Config{}, err
	}
	c := machine.Config{
		QEMU: b.qemu.Program, QEMUArgs: b.qemu.Args,
		Kernel: kernel.Image(), Modules: kernel.Modules(), Root: b.root,
		Initrd: filepath.Join(dir, "initrd"), Payload: filepath.Join(dir, "payload.img"),
		Append: v.append,
	}
	if err := kernel.Initrd(b.guest, c.Initrd); err != nil {
		return c, err
	}
	return c, b.payload.disk(ctx, plan, dir, c.Payload)
}

// printEvent prints an event of a machine, except heartbeats.
func (b *runner) printEvent(v variant, e protocol.Event) {
	switch e.Kind {
	case protocol.Hello:
		b.out.say(v.name, "booted Linux %s in %.0f s", e.Text, e.Uptime.Seconds())
	case protocol.Begin:
		b.out.say(v.name, "begin %s", e.Command)
	case protocol.Line:
		b.out.say(v.name, "%s", e.Text)
	case protocol.Kernel:
		b.out.say(v.name, "%s: %s", e.Trouble, e.Text)
	case protocol.End:
		b.out.say(v.name, "end %s after %.1f s, exit code %d %s", e.Command, e.Duration.Seconds(), e.ExitCode, e.Text)
	}
}
