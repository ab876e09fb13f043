# Makes this machine a worker of the Corral controller that served this script. `corral invite` prints the
# line that runs it, with the controller's key in it. Needs Python 3.11 or newer, and curl.exe, which
# Windows 10 and later have. Options behind the invitation are those of `corral worker join`.
param([Parameter(Mandatory = $true)][string]$Invitation, [Parameter(ValueFromRemainingArguments = $true)][string[]]$Options)
$ErrorActionPreference = 'Stop'

$Pin = 'sha256//@PIN@'
$Wheel = '@WHEEL@'
$Sha256 = '@SHA256@'
$Version = '@VERSION@'

if ($Invitation -notmatch '^corral://([^@]+)@([^?]+)\?') {
    throw 'join: Give the invitation of `corral invite`, between single quotes.'
}
if ($Invitation -like '*for=client*') {
    throw 'join: This string is for clients (corral login). Use the line that `corral invite` prints.'
}
$Token = $Matches[1]
$Url = "https://$($Matches[2])"

function Get-FromController([string]$Name, [string]$Path) {
    "header = `"Authorization: Bearer $Token`"" |
        curl.exe -fsSk -K - --noproxy '*' --pinnedpubkey $Pin -o $Path "$Url/join/$Name"
    if ($LASTEXITCODE) { throw "join: The controller at $Url did not hand out $Name. Ask for a new line: corral invite." }
}

function Find-Python {
    foreach ($Candidate in @(@('py', '-3'), @('python'), @('python3'))) {
        if (Get-Command $Candidate[0] -ErrorAction SilentlyContinue) {
            $Rest = @($Candidate | Select-Object -Skip 1)
            & $Candidate[0] @Rest -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>$null
            if ($LASTEXITCODE -eq 0) { return , $Candidate }
        }
    }
    throw 'join: Corral needs Python 3.11 or newer. Install it (winget install Python.Python.3.12), then run this line again.'
}

$CorralHome = if ($env:CORRAL_HOME) { $env:CORRAL_HOME } else { Join-Path $env:LOCALAPPDATA 'corral\corral' }
$Place = Join-Path $CorralHome "software\$Version-$($Sha256.Substring(0, 8))"
$Python = Join-Path $Place 'Scripts\python.exe'
if (-not (Test-Path (Join-Path $Place '.complete'))) {
    $Download = Join-Path ([IO.Path]::GetTempPath()) ([IO.Path]::GetRandomFileName())
    New-Item -ItemType Directory -Path $Download | Out-Null
    try {
        Get-FromController $Wheel (Join-Path $Download $Wheel)
        Get-FromController 'constraints.txt' (Join-Path $Download 'constraints.txt')
        if ((Get-FileHash (Join-Path $Download $Wheel) -Algorithm SHA256).Hash -ne $Sha256) {
            throw 'join: The download is damaged; run this line again.'
        }
        Write-Host "join: Installing Corral $Version into $Place (a minute or so)."
        $Found = Find-Python
        $Rest = @($Found | Select-Object -Skip 1)
        & $Found[0] @Rest -m venv --clear $Place
        if ($LASTEXITCODE) { throw 'join: Python could not make a virtual environment.' }
        & $Python -m pip install -q --disable-pip-version-check -c (Join-Path $Download 'constraints.txt') (Join-Path $Download $Wheel)
        if ($LASTEXITCODE) { throw 'join: The parts of Corral could not be installed; the message is above.' }
        New-Item -ItemType File -Path (Join-Path $Place '.complete') | Out-Null
    }
    finally { Remove-Item -Recurse -Force $Download }
}
Write-Host "join: The command is $(Join-Path $Place 'Scripts\corral.exe')"
$env:CORRAL_HOME = $CorralHome
$env:CORRAL_INVITATION = $Invitation  # other processes can read the arguments
try { & $Python -m corral.cli.main worker join @Options }
finally { Remove-Item Env:CORRAL_INVITATION }
