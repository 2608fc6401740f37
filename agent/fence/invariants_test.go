package fence

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// invariant is a rule of fencing that must hold in every flow, and the tests that fail when it is taken out.
type invariant struct {
	rule string
	// tests are by directory, relative to this one.
	tests map[string][]string
}

func here(names ...string) map[string][]string { return map[string][]string{".": names} }
func controller(names ...string) map[string][]string {
	return map[string][]string{"../controller": names}
}

// both returns the tests of two directories.
func both(a, b map[string][]string) map[string][]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// invariants are the rules.
var invariants = []invariant{
	// What proves that a machine is off.
	{"success of an act is no proof", both(here("TestRandomFences", "TestNotReleased"), controller("TestSeededFaults", "TestNoReleaseWithoutProof"))},
	{"a reading that began before the last act ended is no proof", here("TestRandomFences", "TestProofClauses")},
	{"act and readings have sessions of their own, one at a time", controller("TestEachUseOpens", "TestOneActInFlight")},
	{"each plug of a level is proven off", here("TestRandomFences", "TestProofClauses")},
	{"there are two readings, an interval apart", here("TestTimelines", "TestProofClauses")},
	{"a device that was away is read over a longer time", here("TestTimelines")},
	{"an unknown reading is not off", here("TestNotReleased", "TestProofClauses")},
	{"a fence agent's exit status alone is not off", map[string][]string{"device/clusterlabs": {"TestStatus"}}},
	{"of a Redfish service only PowerState Off is off", map[string][]string{"device/redfish": {"TestReadings"}}},
	{"a BMC that could not change the power is not off", map[string][]string{"device/ipmi": {"TestStatusAnswers"}}},
	{"a reading with an error is not off", controller("TestReadings")},
	{"the Lease is unchanged for the grace period when the machine is proven off", here("TestNotReleased")},
	{"readings from before a change of the Lease are no proof", here("TestProofClauses")},
	{"a node that is Ready is not proven off", here("TestProofClauses")},
	{"a reading on makes all readings off before it void", here("TestRandomFences")},
	// The order of the release.
	{"nothing is released without a proof", both(here("TestProofMissing", "TestForgedRelease"), controller("TestOrdersWithoutProof"))},
	{"the devices of the proof are read once more just before the release", here("TestReleaseNeedsRecentReading", "TestNotReleased")},
	{"a saved release without its taint begins with a reading", here("TestForgedRelease")},
	{"a device that reads on in the release ends it", both(here("TestTimelines", "TestRandomFences"), controller("TestSeededFaults"))},
	{"the taint is taken back although the state could not be saved", controller("TestTaintIsTakenBackUnsaved")},
	{"pods are deleted only after the taint is set", here("TestReleaseHeld")},
	{"a release ends when pods and volumes are known to be gone", here("TestReleaseEnds")},
	{"no pod is deleted while the Lease is not known to be unchanged", here("TestNoDeletionWithoutLease")},
	{"pods that tolerate the taint stay", here("TestReleaseHeld")},
	{"pods are deleted by UID", controller("TestDeletePods")},
	{"VolumeAttachments are deleted by UID", controller("TestDeleteAttachments")},
	{"nothing is switched on before the release", here("TestDrillTimelines", "TestTimelines")},
	{"nothing is switched on while the Node is out of service, nor just after", both(here("TestTimelines"), controller("TestCheckAct"))},
	{"the taint goes before the machine is switched on", here("TestDrillTimelines", "TestTimelines")},
	{"a Node is patched only if it has not changed, and foreign taints stay", controller("TestPatchesTestVersion", "TestTaintPatch")},
	{"taints of a fence that is gone are removed", controller("TestSweep")},
	{"of a node that is cut off from storage only the pods of that storage are released", here("TestStorageTimelines", "TestStorageNotReleased")},
	{"storage that was released is given back only after a reboot", both(here("TestStorageTimelines"), controller("TestCheckAct"))},
	{"clean-pods deletes only pods of a node that was released", both(here("TestMayClean"), controller("TestCheckAct"))},
	// What is read just before an act.
	{"a Ready Node stops an act", controller("TestCheckAct")},
	{"a renewed Lease, or none, stops an act", controller("TestCheckAct", "TestNoActWithoutLease")},
	{"a Node or NodeFence of another UID or resourceVersion stops an act", controller("TestCheckAct")},
	{"the Node is read from the API server, not from the cache", controller("TestNodeIsReadLive")},
	{"the last check comes just before the act", controller("TestOutcomes", "TestActOnObjects")},
	{"a state is saved only in place of the one that it was computed from", controller("TestChangeAtAnyPoint")},
	// Intents.
	{"there is one intent at a time", here("TestRandomFences", "TestKdumpTimelines")},
	{"an intent is saved before the act", controller("TestConflictKeepsResults", "TestRestartAtEveryPoint")},
	{"for a node one act is in flight", controller("TestOneActInFlight")},
	{"a device has one use at a time", controller("TestDeviceUse", "TestOneActInFlight")},
	{"an act does not begin after its deadline", both(controller("TestOutcomes"), map[string][]string{"execute": {"TestRunRefuses"}})},
	{"an intent without an outcome is waited for, and its id is not used again", both(here("TestRandomFences"), controller("TestRestartAtEveryPoint"))},
	{"a new controller waits for the whole time of a foreign intent", both(here("TestTwoControllersWait", "TestTimelines"), controller("TestLateCommand"))},
	// Leadership.
	{"acts end when the leadership is lost, and are waited for", controller("TestLeadershipLost")},
	{"they end before another controller can be the leader", controller("TestElectionCheck", "TestLeaseNotRenewed", "TestLeaseTaken", "TestLeaseGivenUp")},
	{"the whole process group of an agent is killed", map[string][]string{"device/clusterlabs": {"TestDeadline", "TestProc"}}},
	{"the Lease that remediators share is taken, and honoured", controller("TestFenceTakesLease", "TestAcquire", "TestConfirmedHonoursLease", "TestCheckAct")},
	{"nothing is fenced for a grace period after the start", controller("TestSightings", "TestNoReleaseWithoutProof")},
	{"nothing is fenced for a grace period after an outage of the API server", controller("TestFailedList")},
	// The gate.
	{"the policy is asked before each act and before the release", both(here("TestReleaseHeld", "TestRandomFences"), controller("TestGateLists"))},
	{"pods are released for storage or a dump only while the gate is open", here("TestStorageTimelines", "TestKdumpReleaseTimelines")},
	{"percentages are rounded down, and unknown nodes are unhealthy", here("TestStorm")},
	{"nothing is fenced without a Ready node, or in a disrupted zone", here("TestStorm", "TestZoneRate")},
	{"concurrency, rate and cooldown are bounded", here("TestStorm", "TestRate", "TestCooldown")},
	{"control-plane nodes are fenced one at a time, with a majority", here("TestStorm")},
	{"the node of the controller is not fenced; a leader whose node is not Ready steps down", controller("TestWithheld", "TestOwnNode")},
	{"excluded and paused nodes are not fenced, until the mark expires", controller("TestWithheld", "TestPausedUntil", "TestPausedNode")},
	{"nodes that another remediator works on are not fenced", controller("TestRemediatorTaint")},
	// Identity.
	{"the Node of the fence is the one that it was created for", both(here("TestRandomFences"), controller("TestCheckAct"))},
	{"the UUID of the device is compared before an act, and in each reading", both(here("TestNotReleased", "TestProofClauses"), controller("TestOutcomes", "TestSeededFaults"))},
	{"a UUID is compared in three byte orders; one that identifies nothing does not match", here("TestSameMachine")},
	{"a UUID that two Nodes share identifies nothing", controller("TestSharedUUID", "TestSharedUUIDLater")},
	{"any device of the node that reads on contradicts the proof", both(here("TestProofClauses"), controller("TestSeededFaults"))},
	{"a Lease that is renewed after the proof with the old boot ID stops the fence", both(here("TestNotReleased"), controller("TestSeededFaults"))},
	{"a node that returns with its old boot ID stays in quarantine", here("TestTimelines")},
	// Executors, secrets and rights.
	{"executors have no credentials, and the passwords in a file of their own", controller("TestJobRequest")},
	{"agents have no arguments and no environment of the controller", map[string][]string{"device/clusterlabs": {"TestInput", "TestProc"}}},
	{"secrets are in no error and in no cache", both(controller("TestStrippedSecret"), map[string][]string{"device/clusterlabs": {"TestRedaction"}, "device/redfish": {"TestSecrets"}})},
	{"a Job does not run on the node that it fences", controller("TestJobRequest", "TestJobStatus")},
	{"agents are of one directory, with the name of one, and other users cannot write them", map[string][]string{"device/clusterlabs": {"TestFind"}}},
	{"an agent is always given an action", map[string][]string{"device/clusterlabs": {"TestInput", "TestNewRefuses"}}},
	{"reboot, cycle and reset are refused, and so is one plug of two nodes", map[string][]string{"plan": {"TestProblems"}}},
	{"configuration of other namespaces is not read", controller("TestWatchedNamespaces")},
	// The rest.
	{"what fails after the release does not undo it", here("TestTimelines")},
	{"a dry run does nothing, and says what it would do", both(here("TestRandomFences", "TestMessages"), controller("TestOrdersWithoutProof", "TestDryRunTakesNoLease"))},
	{"devices are probed, with their UUID, and reported", controller("TestProbes", "TestProbeFailure", "TestProbesMixedExecutors")},
}

// TestInvariants checks that each test that an invariant names exists.
func TestInvariants(t *testing.T) {
	known := map[string]map[string]bool{}
	for _, i := range invariants {
		if i.rule == "" || len(i.tests) == 0 {
			t.Errorf("%+v: want a rule and its tests", i)
		}
		for dir, names := range i.tests {
			if known[dir] == nil {
				known[dir] = testsOf(t, dir)
			}
			for _, name := range names {
				if !known[dir][name] {
					t.Errorf("%s: %s has no test %s", i.rule, dir, name)
				}
			}
		}
	}
}

// testsOf returns the names of the tests of a directory.
func testsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d test files, %v", dir, len(files), err)
	}
	names := map[string]bool{}
	for file := range slices.Values(files) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
				names[fn.Name.Name] = true
			}
		}
	}
	return names
}
