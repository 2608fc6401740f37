package main

import (
	_ "embed"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/evictd/evictd/tests/vm/protocol"
)

// The profiles.
const (
	profileSmoke = "smoke"
	profileTest  = "test"
	profileFull  = "full"
)

// suite is a set of tests that are run and reported together.
type suite struct {
	name string
	// profiles are those that run the suite.
	profiles []string
	// packages are patterns of the Go packages whose tests are run.
	packages []string
	// without lists packages whose tests do not depend on the kernel and are not run.
	without []string
	// classes divide the tests of one package by regular expressions; nil runs all of them with one command.
	classes []class
	// selection is set if the classes have only those tests whose result depends on the machine.
	selection bool
	// takes is the expected duration with two machines on two processors; without classes it is that of each package or
	// command, except those in long. Expected durations count against the budget of a profile. The timeout of tests is
	// computed from their expected duration (timeoutOf); commands that are not Go tests have their own.
	takes time.Duration
	long  map[string]time.Duration
	// cluster is set if the tests need the programs that tests/cluster/fetch.sh puts into the cache.
	cluster bool
	// commands returns commands that are not Go tests.
	commands func(variant) []protocol.Command
}

// class is a set of tests of one subject. A class without an expression has all tests that no other class has, so that
// new tests are run too.
type class struct {
	name, run string
	takes     time.Duration
	// smoke includes the class in the smoke profile, which runs no other classes. A partial class is a part of another
	// class and is not in the full profile. It exists because the budget of a profile may have no room for the other class.
	smoke, partial bool
	// more plans the class after all classes without more, so that one test of each subject comes before further
	// tests of any subject.
	more bool
	// powersOff means that the class powers the machine off: it is planned last.
	powersOff bool
}

// in reports whether a profile runs the class.
func (c class) in(profile string) bool {
	if profile == profileSmoke {
		return c.smoke
	}
	return !c.partial || profile != profileFull
}

//go:embed boot.sh
var bootScript string

var suites = []suite{
	{name: "boot", profiles: []string{profileSmoke, profileTest, profileFull}, takes: 5 * time.Second, commands: boot},
	{name: "native", profiles: []string{profileSmoke, profileTest, profileFull}, packages: []string{"./tests/native"}, classes: []class{
		{name: "each-class", run: "^TestHogOfEachClass$", takes: 75 * time.Second, smoke: true},
		{name: "soft-eviction", run: "^TestSoftEviction$", takes: 30 * time.Second, smoke: true},
		{name: "victims", run: "^TestTwoHogs$", takes: 50 * time.Second},
		{name: "memory", run: "^TestFrozenVictim$", takes: 45 * time.Second},
		{name: "growth", run: "^(TestHeapBesideActiveCache|TestMappedFile)$", takes: 90 * time.Second},
		{name: "lanes", run: "^(TestEachLaneKills|TestRequiredLane)$", takes: 55 * time.Second},
		{name: "soft", run: "^TestSoftTurnsHard$", takes: 40 * time.Second},
		{name: "restart", run: "^TestKilledAfterKill$", takes: 35 * time.Second},
		{name: "spare", run: "^TestSharedParent$", takes: 40 * time.Second},
		{name: "runtime", run: "^TestRuntimeAbsentAtStart$", takes: 45 * time.Second},
		{name: "daemon", run: "^TestReload$", takes: 40 * time.Second},
		{name: "one-disk", run: "^TestStorageLimits$", takes: 60 * time.Second, partial: true},
		{name: "one-bomb", run: "^TestForkBombTakesPIDs$", takes: 30 * time.Second, partial: true},
		{name: "one-shutdown", run: "^TestShutdown$", takes: 60 * time.Second, partial: true},
		{name: "more-victims", run: "^(TestRanking|TestForkingHog)$", takes: 340 * time.Second, more: true},
		{name: "more-memory", run: "^(TestMemoryOutsideThePods|TestSharedMemoryHog|TestStoppedVictim)$", takes: 300 * time.Second, more: true},
		{name: "more-growth", run: "^(TestHogBesideActiveCache|TestHogWhileCrossingWaits|TestDatabaseWarmsCache|TestDatabaseBuffer|TestHeapAfterStart|TestMemoryVolumeHog|TestImagePull)$", takes: 550 * time.Second, more: true},
		{name: "more-soft", run: "^TestSoftRecovery$", takes: 150 * time.Second, more: true},
		{name: "more-restart", run: "^(TestKilledDuringGrace|TestGraceOverRestart)$", takes: 170 * time.Second, more: true},
		{name: "more-spare", run: "^(TestExemptPodsLive|TestKubeletsPods|TestOverride|TestUnprovenCgroup|TestOwnCgroup|TestNoCgroupParent)$", takes: 400 * time.Second, more: true},
		{name: "more-runtime", run: "^(TestRuntimeRestart|TestUnlistedPod)$", takes: 280 * time.Second, more: true},
		{name: "more-daemon", run: "^(TestDryRun|TestSIGTERM|TestSIGTERMWhileEvicting|TestSecondDaemonOnStateDir|TestReadiness|TestStatusCommand)$", takes: 140 * time.Second, more: true},
		{name: "more-lanes", run: "^(TestAlarmWithoutCause|TestLanesDisagree|TestRingOverrun|TestBrokenLane|TestPollingKills|TestContinuousGC|TestCrossingAfterIteration|TestSteadyPodLives|TestStoppedDaemon|TestReloadRearms|TestReloadWhileGrowing|TestLimitRaises)$", takes: 800 * time.Second, more: true},
		{name: "reported", run: "^(TestReportedKill|TestFenceIsFast)$", takes: 90 * time.Second, more: true},
		{name: "apparmor", run: "^TestAppArmor$", takes: 90 * time.Second, more: true},
		{name: "kernel-kills", run: "^(TestKernelOOM|TestStallsEvict|TestOOMScores|TestKernelOOMChoice)$", takes: 175 * time.Second, more: true},
		{name: "disks", run: "^(TestDiskUsageOfPods|TestDiskHogs|TestStorageLimits|TestDiskHogBesideHang|TestDiskFullOutsidePods|TestImagesGoFirst|TestEmptyDirHog|TestImageCollection|TestFullStateDisk|TestFullLogDisk|TestReadOnlyFilesystem|TestHungFilesystem|TestHungNFS)$", takes: 1400 * time.Second, more: true},
		{name: "pids", run: "^(TestForkBomb|TestForkBombTakesPIDs|TestUnlistedForkBomb|TestForkingAllocators|TestHogIgnoresSIGTERM)$", takes: 160 * time.Second, more: true},
		{name: "cold", run: "^(TestCacheWaits|TestProactiveReclaim)$", takes: 440 * time.Second, more: true},
		{name: "shutdown", run: "^TestShutdown", takes: 310 * time.Second, more: true},
		{name: "rest", takes: 10 * time.Second, more: true},
	}},
	{name: "service", profiles: []string{profileSmoke, profileTest, profileFull}, packages: []string{"./tests/service"}, classes: []class{
		{name: "ready", run: "^TestService$/^(unit|without_a_runtime|with_a_runtime|evictd-kube)$", takes: 70 * time.Second, smoke: true, partial: true},
		{name: "life", run: "^TestService$", takes: 260 * time.Second, more: true},
		{name: "shutdown", run: "^TestNodeShutdown$", takes: 8 * time.Minute, more: true},
		{name: "sandbox", run: "^TestSandbox$", takes: 90 * time.Second, more: true},
		{name: "poweroff", run: "^TestPowerOff$", takes: 2 * time.Minute, more: true, powersOff: true},
		{name: "rest", takes: 5 * time.Second},
	}},
	{name: "kernel", profiles: []string{profileTest, profileFull}, packages: []string{"./kernel/...", "./bpf/..."}, takes: 4 * time.Second,
		long: map[string]time.Duration{"kernel/cgroup": 40 * time.Second, "kernel/process": 8 * time.Second, "kernel/probe": 8 * time.Second, "kernel/watchdog": 60 * time.Second, "bpf": 150 * time.Second}},
	{name: "agent", profiles: []string{profileFull}, packages: []string{"./cri/...", "./agent/..."}, takes: 15 * time.Second,
		long:    map[string]time.Duration{"agent/selffence/driver": 4 * time.Minute},
		without: []string{"agent/config", "agent/config/strict", "agent/evict", "agent/scenario", "agent/selffence", "agent/signal"}},
	{name: "node", profiles: []string{profileFull}, packages: []string{"./tests/node"}, takes: 9 * time.Minute},
	{name: "cluster", profiles: []string{profileFull}, packages: []string{"./tests/cluster"}, cluster: true, selection: true, classes: []class{
		{name: "cluster-evictions", run: "^TestEvictions$", takes: 8 * time.Minute},
		{name: "cluster-systemd", run: "^TestFenceBesideSystemd$", takes: 5 * time.Minute},
		{name: "cluster-apparmor", run: "^TestConfinedEviction$", takes: 3 * time.Minute, more: true},
		{name: "cluster-faults", run: "^TestEvictionFaults$", takes: 10 * time.Minute, more: true},
		{name: "cluster-soft-faults", run: "^TestSoftEvictionFaults$", takes: 10 * time.Minute, more: true},
		{name: "cluster-shutdown", run: "^TestShutdown$", takes: 6 * time.Minute, more: true},
		{name: "cluster-installed", run: "^TestInstalled$", takes: 6 * time.Minute, more: true},
	}},
	{name: "bench", profiles: []string{profileFull}, takes: 12 * time.Minute, commands: bench},
}

func suiteNames() []string {
	var names []string
	for _, s := range suites {
		names = append(names, s.name)
	}
	return names
}

// classesOf returns the classes of a suite by its name.
func classesOf(name string) []class {
	for _, s := range suites {
		if s.name == name {
			return s.classes
		}
	}
	return nil
}

func classNames() []string {
	var names []string
	for _, s := range suites {
		for _, c := range s.classes {
			if !slices.Contains(names, c.name) {
				names = append(names, c.name)
			}
		}
	}
	return names
}

// boot returns a command that checks the kernel and the settings of the machine.
func boot(v variant) []protocol.Command {
	return []protocol.Command{{
		Name:    "boot",
		Argv:    []string{"/bin/sh", "-c", bootScript},
		Env:     v.env(),
		Timeout: 2 * time.Minute,
	}}
}

// bench returns the command of the benchmark. It compares evictd with systemd-oomd, which needs the units of the systemd
// driver.
func bench(v variant) []protocol.Command {
	if v.driver != "systemd" {
		return nil
	}
	return []protocol.Command{{
		Name: "bench", Argv: []string{programsDir + "/bench", "-vm", "-v", "-bursts", "6"},
		Env: v.env(), Timeout: 40 * time.Minute,
	}}
}

// The directories of the payload disk.
const (
	sourceDir   = protocol.PayloadDir + "/src"
	programsDir = protocol.PayloadDir + "/bin"
	clusterDir  = protocol.PayloadDir + "/cluster"
	deployDir   = sourceDir + "/deploy"
)

// testCommand returns a command that runs tests of a package. flags are those of go test, without "-test.".
func testCommand(v variant, pkg, name string, timeout time.Duration, flags ...string) protocol.Command {
	// The test ends itself 10 s before its command is killed, so that it prints its goroutines.
	argv := []string{"./" + path.Base(pkg) + ".test", "-test.v", "-test.timeout=" + (timeout - 10*time.Second).String()}
	for _, f := range flags {
		argv = append(argv, "-test."+f)
	}
	return protocol.Command{Name: name, Argv: argv, Env: v.env(), Dir: path.Join(sourceDir, pkg), Timeout: timeout}
}

// flag returns the flag that selects the tests of a class.
func (s suite) flag(c class) string {
	if c.run != "" {
		return "run=" + c.run
	}
	var others []string
	for _, other := range s.classes {
		if other.run != "" && !other.partial {
			others = append(others, other.run)
		}
	}
	return "skip=" + strings.Join(others, "|")
}
